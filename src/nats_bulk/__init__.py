"""Bulk publish and range read over the NATS protocol.

The official client is right for control and subscriptions. These are the two paths where a message at a time in Python
is too slow: publishing many messages with acknowledgements, and reading a stream from one sequence to another.

    with nats_bulk.Connection("nats://127.0.0.1:4222") as connection:
        result = nats_bulk.publish(connection, [nats_bulk.Message("orders.created", b"{}", id="1")])
        for batch in nats_bulk.read_range(connection, "ORDERS", 1, result.sequences[-1]):
            print(batch.subjects, batch.payloads)
"""

from nats_bulk.address import parse_addresses
from nats_bulk.connection import Connection
from nats_bulk.credentials import Credentials
from nats_bulk.errors import (
    AuthenticationFailed,
    BulkError,
    ConnectionLost,
    InvalidMessage,
    NoAnswer,
    ProtocolError,
    PublishFailed,
    RangeBeyondEnd,
    ServerRefused,
    StreamGone,
    StreamNotReadable,
)
from nats_bulk.publish import Message, PublishError, PublishResult, publish
from nats_bulk.read import RangeBatch, parse_headers, read_range

__all__ = [
    "AuthenticationFailed",
    "BulkError",
    "Connection",
    "ConnectionLost",
    "Credentials",
    "InvalidMessage",
    "Message",
    "NoAnswer",
    "ProtocolError",
    "PublishError",
    "PublishFailed",
    "PublishResult",
    "RangeBatch",
    "RangeBeyondEnd",
    "ServerRefused",
    "StreamGone",
    "StreamNotReadable",
    "parse_addresses",
    "parse_headers",
    "publish",
    "read_range",
]
