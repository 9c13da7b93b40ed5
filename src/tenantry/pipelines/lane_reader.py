"""Reads lanes with Spark: as a stream without an end, or from one sequence to another."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Final
from uuid import uuid4

from pyspark.sql import DataFrame, SparkSession

from pyspark_nats import NatsDataSource, Stream
from tenantry.pipelines.catalog import ADDRESS, QUERY
from tenantry.pipelines.offset_log import Ranges
from tenantry.pipelines.switchboard import Answer, Switchboard

CATALOG: Final = "tenantry.pipelines.catalog:Catalog"
# Tasks have a batch in memory, and a tenant whose events are large must not use up what all others need.
MOST_BYTES: Final = 64 << 20


class LaneReader:
    def __init__(self, spark: SparkSession, switchboard: Switchboard) -> None:
        self.spark = spark
        self._switchboard = switchboard
        self._registering = threading.Lock()

    def stream(self, query: str, answer: Answer, *, most: int) -> DataFrame:
        """What a query is answered to read, as messages, at most so many in a batch."""
        self._switchboard.connect(query, answer)
        with self._registering:
            # Queries that are made of one registration write into the same variables when they start, and the one that
            # Spark makes by itself does not stand that: none of them could then send a task to its executors any more.
            self.spark.dataSource.register(NatsDataSource)
            reader = self.spark.readStream.format("nats").options(**self._options(query))
            return reader.options(maxOffsetsPerTrigger=most, maxBytesPerTrigger=MOST_BYTES).load()

    @contextmanager
    def read(self, streams: Sequence[Stream], ranges: Ranges) -> Iterator[DataFrame]:
        """The messages of ranges, as they are now; what is gone of them is left out."""
        query = str(uuid4())
        wanted = [replace(stream, start=None) for stream in streams if stream.key in ranges]
        self._switchboard.connect(query, lambda: wanted)
        try:
            yield (
                self.spark.read.format("nats")
                .options(**self._options(query))
                .option("startingOffsets", json.dumps({stream.key: ranges[stream.key][0] for stream in wanted}))
                .option("endingOffsets", json.dumps({stream.key: ranges[stream.key][1] + 1 for stream in wanted}))
                .load()
            )
        finally:
            self._switchboard.disconnect(query)

    def forget(self, query: str) -> None:
        self._switchboard.disconnect(query)

    def _options(self, query: str) -> dict[str, str]:
        return {
            "catalog": CATALOG,
            ADDRESS: self._switchboard.address,
            QUERY: query,
            # A tenant whose events have expired before they were read must not stop the others.
            "failOnDataLoss": "false",
            "drainUnlisted": "false",
        }
