"""A projection on the driver: each batch is folded in tasks, which write the documents."""

from __future__ import annotations

from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from tenantry.application import Projection
from tenantry.pipelines.assignment import Assignment
from tenantry.pipelines.folding import FOLDED_DDL, Folding
from tenantry.pipelines.keys import LaneName, lane_of
from tenantry.pipelines.offset_log import Ranges
from tenantry.pipelines.progress import STEP, Done
from tenantry.pipelines.queries import Course, PipelineQueries

COLUMNS: Final = ("tenant", "channel", "type", "id", "source", "subject", "time", "trace", "sequence", "bytes")


class ProjectionPipeline(PipelineQueries):
    """Folding is part of the query itself, so that Spark plans it once and computes no column that it does not need."""

    def __init__(self, assignment: Assignment, projection: Projection, database_url: str, course: Course) -> None:
        super().__init__(assignment, course)
        self._folding = Folding(assignment.progress.pipeline, projection, database_url)

    def _frame(self, messages: DataFrame) -> DataFrame:
        return fold_events(messages.where(F.col("problem").isNull()), self._folding)

    def _handle_batch(self, frame: DataFrame, number: int, ranges: Ranges) -> None:  # noqa: ARG002
        # A lane whose row is missing is a tenant's that is gone, so those that have just come must have theirs.
        self.assignment.lanes_in({key for key in ranges if lane_of(key) is None})
        parked = set()
        for row in frame.collect():
            lane = LaneName(row.tenant, row.channel)
            self.assignment.advanced({lane: Done(row.sequence)}, is_recorded=True)
            if row.parked_reason is not None:
                parked.add(lane)
                self.assignment.parked(
                    lane, row.parked_sequence, row.parked_reason, row.parked_traceback, is_recorded=True
                )
        STEP.emit(pipeline=self.name, step="folded")
        # What had nothing for this projection at its end has been passed as well.
        ends = {own: Done(last) for key, (_, last) in ranges.items() if (own := lane_of(key))}
        self.assignment.advanced({own: done for own, done in ends.items() if own not in parked})


def fold_events(events: DataFrame, folding: Folding) -> DataFrame:
    """What tasks make of events; they know themselves what was applied before."""
    return events.select(*COLUMNS, F.to_json("data").alias("data")).mapInArrow(folding, FOLDED_DDL)
