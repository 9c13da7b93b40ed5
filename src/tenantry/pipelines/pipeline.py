"""A pipeline as it runs: its queries, one for all tenants and one for each that has one to itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery

from tenantry.pipelines.assignment import SHARED, Assignment
from tenantry.pipelines.batch import Batch
from tenantry.pipelines.events import read_messages
from tenantry.pipelines.keys import lane_of
from tenantry.pipelines.lane_reader import LaneReader
from tenantry.pipelines.offset_log import OffsetLog
from tenantry.pipelines.query import KeptQuery
from tenantry.tenants.roster import Roster

AS_FAST_AS_IT_CAN: Final = "0 seconds"


class RunningPipeline:
    """Of the kind that handles each batch by itself."""

    def __init__(
        self,
        assignment: Assignment,
        handle: Callable[[Batch], None],
        reader: LaneReader,
        roster: Roster,
        refresh_roster: Callable[[], None],
        *,
        types: str | None,
        every: str,
        most: int,
        checkpoints: str,
        first_pause: float,
    ) -> None:
        self.name = assignment.progress.pipeline
        self.assignment = assignment
        self._handle = handle
        self._reader = reader
        self._roster = roster
        self._refresh_roster = refresh_roster
        self._types = types
        self._every = every
        self._most = most
        self._checkpoints = checkpoints
        self._first_pause = first_pause
        self.queries: dict[str, KeptQuery] = {}

    def keep(self) -> None:
        """Start the queries that are wanted, and stop those that have no lanes any more."""
        wanted = {SHARED} | self.assignment.dedicated_tenants()
        for query in wanted - self.queries.keys():
            self.assignment.started(query)
            self.queries[query] = KeptQuery(
                self.name,
                query,
                lambda query=query: self._start(query),  # type: ignore[misc]
                first_pause=self._first_pause,
                on_end=lambda query=query: self.assignment.ended(query),  # type: ignore[misc]
            )
        for query in self.queries.keys() - wanted:
            self.queries.pop(query).stop()

    def stop(self) -> None:
        for kept in self.queries.values():
            kept.stop()
        self.queries.clear()

    def _start(self, query: str) -> StreamingQuery:
        spark = self._reader.spark
        name = f"{self.name}/{query}"
        # Each has a turn at the cores.
        spark.sparkContext.setLocalProperty("spark.scheduler.pool", name)
        checkpoint = f"{self._checkpoints}/{self.name}/{query}"
        log = OffsetLog(spark, checkpoint)
        messages = self._reader.stream(name, lambda: self.assignment.streams_of(query), most=self._most)

        def handle(frame: DataFrame, number: int) -> None:
            ranges = log.ranges(number)
            if not all(self._is_known(key) for key in ranges):
                self._refresh_roster()
            if ranges:
                self._handle(Batch.of(frame, ranges, self.assignment, self._roster))

        return (
            read_messages(messages, self._types)
            .writeStream.queryName(name)
            .foreachBatch(handle)
            .option("checkpointLocation", checkpoint)
            .trigger(processingTime=self._every)
            .start()
        )

    def _is_known(self, key: str) -> bool:
        """Who is in a shared stream is only known from its messages; that may be somebody who has just come."""
        lane = lane_of(key)
        return lane is not None and self._roster.find(lane.tenant) is not None
