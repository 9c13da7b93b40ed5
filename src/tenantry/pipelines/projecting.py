"""A projection on the driver: each batch is folded in tasks, which write the documents."""

from __future__ import annotations

from pyspark.sql import functions as F

from tenantry.application import Projection
from tenantry.pipelines.assignment import Assignment
from tenantry.pipelines.batch import Batch
from tenantry.pipelines.folding import FOLDED_DDL, Folding
from tenantry.pipelines.keys import LaneName
from tenantry.pipelines.progress import STEP, Done


class Projecting:
    def __init__(self, projection: Projection, assignment: Assignment, database_url: str) -> None:
        self._assignment = assignment
        self._folding = Folding(assignment.progress.pipeline, projection, database_url)

    def __call__(self, batch: Batch) -> None:
        # The tasks know themselves what was applied before.
        events = (
            batch.known()
            .where(F.col("problem").isNull())
            .select(
                "tenant",
                "channel",
                "type",
                "id",
                "source",
                "subject",
                "time",
                F.to_json("data").alias("data"),
                "trace",
                "sequence",
                "bytes",
            )
        )
        folded = events.mapInArrow(self._folding, FOLDED_DDL).collect()
        STEP.emit(pipeline=self._assignment.progress.pipeline, step="folded")
        ends = {lane: Done(last) for lane, last in batch.ends.items()}
        parked = set()
        for row in folded:
            lane = LaneName(row.tenant, row.channel)
            self._assignment.advanced({lane: Done(row.sequence)}, is_recorded=True)
            if row.parked_reason is not None:
                parked.add(lane)
                self._assignment.parked(
                    lane, row.parked_sequence, row.parked_reason, row.parked_traceback, is_recorded=True
                )
        # What had nothing for this projection at its end has been passed as well.
        self._assignment.advanced({lane: each for lane, each in ends.items() if lane not in parked})
