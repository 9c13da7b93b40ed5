"""A Spark data source for NATS JetStream: exact on replay, fair across streams, usable without the rest of Tenantry.

    servers = {"nats.url": "nats://127.0.0.1:4222"}
    events = spark.readStream.format("nats").options(**servers).option("streams", "TENANT_*").load()

Spark finds it by itself where this package is installed. Offsets are stream sequences in Spark's own checkpoint; the
broker keeps nothing for a query.
"""

from pyspark_nats.access import Access
from pyspark_nats.catalog import Stream
from pyspark_nats.errors import CatalogInvalid, DataLost, NatsError, OptionInvalid, StreamsUnavailable, WriteFailed
from pyspark_nats.source import NatsDataSource

DefaultSource = NatsDataSource

__all__ = [
    "Access",
    "CatalogInvalid",
    "DataLost",
    "DefaultSource",
    "NatsDataSource",
    "NatsError",
    "OptionInvalid",
    "Stream",
    "StreamsUnavailable",
    "WriteFailed",
]
