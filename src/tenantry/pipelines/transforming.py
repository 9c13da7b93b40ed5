"""A pipeline of the application on the driver: its function over each batch, its rows into the tables of tenants."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import VariantType

from tenantry.application import Pipeline
from tenantry.errors import ApplicationInvalid
from tenantry.pipelines.assignment import Assignment
from tenantry.pipelines.batch import Batch
from tenantry.pipelines.culprits import find_sequence, try_lanes
from tenantry.pipelines.events import events_of
from tenantry.pipelines.keys import LaneName
from tenantry.pipelines.progress import STEP, Done
from tenantry.pipelines.spark_errors import find_cause
from tenantry.pipelines.table_files import TENANT, WRITTEN_DDL, FileWriter
from tenantry.pipelines.table_positions import TablePositions, finish_batch
from tenantry.pipelines.tables import Commit, File, Tables

TABLE_COLUMN = "_table"
Written = dict[str, Any]


class Transforming:
    """A pipeline that keeps no state: its function sees each batch by itself."""

    def __init__(self, pipeline: Pipeline, tables: Tables, assignment: Assignment) -> None:
        self._pipeline = pipeline
        self._tables = tables
        self._assignment = assignment
        self._positions = TablePositions(tables, assignment)

    def __call__(self, batch: Batch) -> None:
        table = self._pipeline.table
        lanes = [lane for lane in batch.lanes if lane.channel == self._pipeline.channel]
        claimed = self._tables.claim((batch.tenants[lane.tenant], table) for lane in lanes)
        locations = {lane: claimed[lane.tenant, table] for lane in lanes}
        applied = self._positions.find(lanes, locations)
        unseen = batch.unseen(applied, self._assignment)
        messages = unseen.where(F.col("problem").isNull())
        messages.persist()
        try:
            seen = _count(messages)
            stopped = self._write(batch, messages, seen, locations) if seen else set()
        finally:
            messages.unpersist()
        # Lanes whose batch ended with events that the pipeline does not want are past those, too.
        ends = {lane: Done(last) for lane, last in batch.ends.items() if lane in applied and lane not in stopped}
        self._assignment.advanced(ends)

    def _write(
        self, batch: Batch, messages: DataFrame, seen: Mapping[LaneName, Done], locations: Mapping[LaneName, str]
    ) -> set[LaneName]:
        """The lanes that did not come to the end of the batch."""
        if keeps_tenant(self._pipeline, messages):
            return self._write_lanes(batch, messages, seen, locations)
        # It makes up whose a row is. So that it cannot be somebody else's, it sees one tenant at a time.
        stopped = set()
        for lane, done in seen.items():
            own = messages.where(F.col("lane") == str(lane))
            stopped |= self._write_lanes(batch, own, {lane: done}, {lane: locations[lane]})
        return stopped

    def _write_lanes(
        self, batch: Batch, messages: DataFrame, seen: Mapping[LaneName, Done], locations: Mapping[LaneName, str]
    ) -> set[LaneName]:
        writing = Writing(self._pipeline, self._tables, locations)
        tried = try_lanes(messages, list(seen), writing)
        good = {lane: done for lane, done in seen.items() if lane not in tried.failed}
        refused = self._commit(batch, writing, [row for rows in tried.results for row in rows], good)
        for lane, problem in tried.failed.items():
            self._park(batch, lane, messages, seen[lane], writing, problem)
        return refused | set(tried.failed)

    def _park(
        self,
        batch: Batch,
        lane: LaneName,
        messages: DataFrame,
        seen: Done,
        writing: Writing,
        problem: Exception,
    ) -> None:
        """A lane goes as far as it can."""
        own = messages.where(F.col("lane") == str(lane))
        if not writing.fails(own):
            # Its function takes these events; that its rows cannot be stored is not the lane's fault.
            raise problem
        first = own.agg(F.min("sequence")).collect()[0][0]
        culprit = find_sequence(own, first, seen.sequence, writing.fails)
        good = own.where(F.col("sequence") < culprit)
        if culprit > first and (counted := _count(good)):
            self._commit(batch, writing, writing(good), counted)
        cause = find_cause(problem)
        self._assignment.parked(lane, culprit, cause.reason, cause.traceback)

    def _commit(
        self, batch: Batch, writing: Writing, written: list[Written], seen: Mapping[LaneName, Done]
    ) -> set[LaneName]:
        """The lanes whose table refused."""
        done = dict(seen)
        files: dict[LaneName, list[File]] = {}
        for row in written:
            lane = LaneName(row["tenant"], self._pipeline.channel)
            before = done[lane]
            done[lane] = before._replace(stored=before.stored + row["size"], seconds=before.seconds + row["seconds"])
            files.setdefault(lane, []).append(File(row["file"], row["size"], row["rows"], row["statistics"]))
        STEP.emit(pipeline=self._pipeline.name, step="written")
        commits = {
            lane: Commit(
                writing.locations[lane],
                batch.tenants[lane.tenant].uid,
                writing.schema,
                added,
                self._positions.mark(lane, done[lane].sequence),
            )
            for lane, added in files.items()
        }
        return finish_batch(self._tables, self._assignment, self._positions, commits, done)


class Writing:
    """The pipeline's function, and where its rows go."""

    def __init__(self, pipeline: Pipeline, tables: Tables, locations: Mapping[LaneName, str]) -> None:
        self._pipeline = pipeline
        self.locations = locations
        claimed = {(lane.tenant, pipeline.table): place for lane, place in locations.items()}
        self._writer = FileWriter(tables.lake, claimed, TABLE_COLUMN, (TABLE_COLUMN,))
        self._tenants = sorted({lane.tenant for lane in locations})
        self.schema: pa.Schema | None = None

    def __call__(self, messages: DataFrame) -> list[Written]:
        rows = self._rows(messages)
        self.schema = to_arrow_schema(rows.schema, timezone="UTC")
        named = rows.withColumn(TABLE_COLUMN, F.lit(self._pipeline.table))
        return [row.asDict() for row in named.mapInArrow(self._writer, WRITTEN_DDL).collect()]

    def _rows(self, messages: DataFrame) -> DataFrame:
        rows = apply(self._pipeline, events_of(messages))
        is_known = F.coalesce(F.col(TENANT).isin(self._tenants), F.lit(False))
        problem = F.concat(
            F.lit(f"expected the rows of pipeline {self._pipeline.name} to be of tenants whose events it got, got: "),
            F.coalesce(F.col(TENANT), F.lit("none")),
        )
        return rows.where(F.when(is_known, True).otherwise(F.raise_error(problem).cast("boolean")))

    def run(self, messages: DataFrame) -> None:
        """The function alone; its rows go nowhere."""
        self._rows(messages).write.format("noop").mode("overwrite").save()

    def fails(self, messages: DataFrame) -> bool:
        try:
            self.run(messages)
        except AnalysisException:
            raise
        except Exception:
            return True
        return False


def keeps_tenant(pipeline: Pipeline, messages: DataFrame) -> bool:
    """Whether the tenant of a row is surely that of an event: the very column, and not one that was made anew."""
    events = events_of(messages)
    return _identity(events, TENANT) == _identity(apply(pipeline, events), TENANT)


def _identity(frame: DataFrame, column: str) -> str:
    output: Any = frame._jdf.queryExecution().analyzed().output()
    attributes = [output.apply(place) for place in range(output.size())]
    return next(str(each.exprId().toString()) for each in attributes if each.name() == column)


def apply(pipeline: Pipeline, events: DataFrame) -> DataFrame:
    """What a pipeline makes of events, as tables can hold it."""
    rows = pipeline.function(events)
    if not isinstance(rows, DataFrame):
        raise ApplicationInvalid(f"expected pipeline {pipeline.name} to return a DataFrame, got: {type(rows).__name__}")
    if TENANT not in rows.columns:
        raise ApplicationInvalid(
            f"expected the rows of pipeline {pipeline.name} to have the column tenant, which says whose they are, got: "
            f"{', '.join(rows.columns)}"
        )
    return rows.select(
        *[
            F.to_json(field.name).alias(field.name) if isinstance(field.dataType, VariantType) else field.name
            for field in rows.schema
        ]
    )


def _count(messages: DataFrame) -> dict[LaneName, Done]:
    """What a batch holds of each lane."""
    counted = messages.groupBy("tenant", "channel").agg(
        F.max("sequence").alias("sequence"), F.count("*").alias("events"), F.sum("bytes").alias("bytes")
    )
    return {LaneName(row.tenant, row.channel): Done(row.sequence, row.events, row.bytes) for row in counted.collect()}
