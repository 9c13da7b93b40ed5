"""What the connector raises on purpose; each says what happened, to which stream, and what to do next.

NatsError
├── OptionInvalid       an option is unknown, missing or has a value it cannot have
├── CatalogInvalid      the catalog hook cannot be imported, or gave something that is not a list of streams
├── StreamsUnavailable  a stream that was named does not exist, cannot be read, or does not answer
├── DataLost            messages that a query had still to read are gone, and failOnDataLoss is true
└── WriteFailed         a row cannot be published, or the server did not store it
"""

from __future__ import annotations


class NatsError(Exception):
    """Something went wrong between Spark and NATS."""


class OptionInvalid(NatsError):
    pass


class CatalogInvalid(NatsError):
    pass


class StreamsUnavailable(NatsError):
    pass


class DataLost(NatsError):
    pass


class WriteFailed(NatsError):
    pass
