"""What can go wrong on the wire.

BulkError
├── ProtocolError          the server sent something this module does not understand
├── ConnectionLost         the connection broke and could not be restored in time
├── AuthenticationFailed   the server refused the credentials
├── ServerRefused          the server answered -ERR, or a JetStream request failed
│   └── StreamNotReadable  it does not allow direct get
│       └── StreamGone     there is no such stream
├── NoAnswer               nothing came back within the timeout
├── InvalidMessage         a message that must not be sent: bad subject or header
├── RangeBeyondEnd         the stream ends before the range that was asked for
└── PublishFailed          some messages of a bulk publish were not stored
"""


class BulkError(Exception):
    """Something went wrong while talking to NATS."""


class ProtocolError(BulkError):
    pass


class ConnectionLost(BulkError):
    pass


class AuthenticationFailed(BulkError):
    pass


class ServerRefused(BulkError):
    pass


class StreamNotReadable(ServerRefused):
    pass


class StreamGone(StreamNotReadable):
    pass


class NoAnswer(BulkError):
    pass


class InvalidMessage(BulkError):
    pass


class RangeBeyondEnd(BulkError):
    pass


class PublishFailed(BulkError):
    pass
