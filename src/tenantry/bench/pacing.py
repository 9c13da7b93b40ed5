"""Publishes at a steady rate to many lanes in turn; each event says when it was sent."""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import cycle
from typing import Final
from uuid import uuid4

import msgspec

import nats_bulk
from nats_bulk import Connection, Message
from tenantry.bench.worker_process import Paced
from tenantry.tenants.lanes import Lane

TICK_SECONDS: Final = 0.004

_encode = msgspec.json.Encoder().encode


def publish_paced(connection: Connection, lanes: Sequence[Lane], phase: str, rate: float, seconds: float) -> float:
    """Events a second that it came to: fewer than were asked for, if the broker would not take them."""
    turns, sent = cycle(lanes), 0
    began = time.perf_counter()
    while (passed := time.perf_counter() - began) < seconds:
        due = int(passed * rate) - sent
        # Each is stamped as the connection takes it.
        nats_bulk.publish(connection, (_message(next(turns), phase) for _ in range(due))).raise_for_errors()
        sent += due
        time.sleep(max(0.0, TICK_SECONDS - (time.perf_counter() - began - passed)))
    return sent / (time.perf_counter() - began)


def publish_slow(connection: Connection, lane: Lane, phase: str, count: int, until: float) -> None:
    """A backlog of events whose handler is slow until then."""
    nats_bulk.publish(connection, (_message(lane, phase, until) for _ in range(count))).raise_for_errors()


def _message(lane: Lane, phase: str, slow_until: float = 0.0) -> Message:
    id = uuid4().hex
    event = {
        "specversion": "1.0",
        "id": id,
        "source": "/bench",
        "type": "order.created",
        "data": Paced(phase, time.time_ns(), slow_until),
    }
    return Message(f"{lane.prefix}.order.created", _encode(event), id)
