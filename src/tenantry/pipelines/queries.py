"""The queries of a pipeline: one for all tenants, and one for each that has one to itself."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery

from tenantry.pipelines.assignment import SHARED, Assignment
from tenantry.pipelines.batch import Batch
from tenantry.pipelines.events import read_messages
from tenantry.pipelines.keys import lane_of
from tenantry.pipelines.lane_reader import LaneReader
from tenantry.pipelines.offset_log import OffsetLog, Ranges
from tenantry.pipelines.progress import STEP
from tenantry.pipelines.query import KeptQuery
from tenantry.pipelines.spark_errors import find_cause
from tenantry.tenants.roster import Roster

AS_FAST_AS_IT_CAN: Final = "0 seconds"
_UNREADABLE: Final = re.compile(
    r"stream (?P<key>[a-z0-9-]+/[a-z0-9-]+@[0-9a-f.]+) cannot be read: (?P<reason>[^\n]{0,300})"
)


@dataclass(frozen=True, slots=True)
class Course:
    """How a pipeline runs."""

    reader: LaneReader
    roster: Roster
    refresh_roster: Callable[[], None]
    types: str | None
    """A regular expression; none: events of every type."""
    channel: str | None
    """None: all of them."""
    every: str
    """How long it waits from the start of one batch to that of the next."""
    most: int
    """Events in a batch."""
    checkpoints: str
    first_pause: float
    """Seconds, after a query has failed for the first time."""


class BatchFailed(Exception):
    """Ends a query; what happened is told beside it."""


class PipelineQueries:
    """What all kinds of pipelines have in common; a kind says what is computed, and what is done with each batch."""

    def __init__(self, assignment: Assignment, course: Course) -> None:
        self.name = assignment.progress.pipeline
        self.assignment = assignment
        self._course = course
        self.queries: dict[str, KeptQuery] = {}
        self._problems: dict[str, Exception] = {}

    def keep(self) -> None:
        """Start the queries that are wanted, and stop those that have no lanes any more."""
        wanted = {SHARED} | self.assignment.dedicated_tenants()
        for query in wanted - self.queries.keys():
            self.assignment.started(query)
            self.queries[query] = KeptQuery(
                self.name,
                query,
                lambda query=query: self._start(query),  # type: ignore[misc]
                first_pause=self._course.first_pause,
                explain=lambda problem, query=query: self._problems.pop(query, problem),  # type: ignore[misc]
                on_failure=lambda problem, query=query: self._get_over(query, problem),  # type: ignore[misc]
                on_end=lambda query=query: self._forget(query),  # type: ignore[misc]
            )
        for query in self.queries.keys() - wanted:
            self.queries.pop(query).stop()

    def stop(self) -> None:
        for kept in self.queries.values():
            kept.stop()
        self.queries.clear()

    def _start(self, query: str) -> StreamingQuery:
        spark = self._course.reader.spark
        name = f"{self.name}/{query}"
        # Each has a turn at the cores.
        spark.sparkContext.setLocalProperty("spark.scheduler.pool", name)
        checkpoint = self._checkpoint(query)
        log = OffsetLog(spark, checkpoint)
        messages = self._course.reader.stream(name, lambda: self.assignment.streams_of(query), most=self._course.most)

        frame = self._frame(read_messages(messages, self._course.types, self._course.channel))

        def handle(frame: DataFrame, number: int) -> None:
            try:
                STEP.emit(pipeline=self.name, step="planned")
                self._handle_batch(frame, number, self._settle(query, log.ranges(number)))
            except Exception as problem:
                self._problems[query] = problem
                # Kept short on its way through the JVM, which searches it with an expression that exhausts its stack.
                raise BatchFailed(find_cause(problem).reason) from None

        return (
            frame.writeStream.queryName(name)
            .foreachBatch(handle)
            .option("checkpointLocation", checkpoint)
            .trigger(processingTime=self._course.every)
            .start()
        )

    def _frame(self, messages: DataFrame) -> DataFrame:
        """What the query computes, and each batch is handled of."""
        return messages

    def _handle_batch(self, frame: DataFrame, number: int, ranges: Ranges) -> None:
        raise NotImplementedError

    def _get_over(self, query: str, problem: Exception) -> None:
        """A lane that could not be read is left out for a while: the batch is then repeated without it."""
        named = _UNREADABLE.search(str(problem))
        if named and (lane := lane_of(named["key"])):
            self.assignment.set_aside(lane, named["reason"].strip())
        else:
            self._recover(query)

    def _forget(self, query: str) -> None:
        self.assignment.ended(query)
        self._course.reader.forget(f"{self.name}/{query}")

    def _recover(self, query: str) -> None:
        """Whatever can be done before a query that has failed is started again."""

    def _settle(self, query: str, planned: Ranges) -> Ranges:
        """What is really read, with everybody known whose messages may be there.

        A batch that is repeated after a restart leaves out what has been parked or handed over since it was planned.
        """
        read = {stream.key for stream in self.assignment.streams_planned(query)}
        ranges = {key: span for key, span in planned.items() if key in read}
        if not all(self._is_known(key) for key in ranges):
            self._course.refresh_roster()
        return ranges

    def _checkpoint(self, query: str) -> str:
        return f"{self._course.checkpoints}/{self.name}/{query}"

    def _is_known(self, key: str) -> bool:
        """Who is in a shared stream is only known from its messages; that may be somebody who has just come."""
        lane = lane_of(key)
        return lane is not None and self._course.roster.find(lane.tenant) is not None


class BatchPipeline(PipelineQueries):
    """Handles each batch by itself."""

    def __init__(self, assignment: Assignment, handle: Callable[[Batch], None], course: Course) -> None:
        super().__init__(assignment, course)
        self._handle = handle

    def _handle_batch(self, frame: DataFrame, number: int, ranges: Ranges) -> None:  # noqa: ARG002
        if ranges:
            self._handle(Batch.of(frame, ranges, self.assignment, self._course.roster))
