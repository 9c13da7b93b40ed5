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
from tenantry.pipelines.tables import File, Mark, Tables

TABLE_COLUMN = "_table"
Written = dict[str, Any]


class Transforming:
    """A pipeline that keeps no state: its function sees each batch by itself."""

    def __init__(self, pipeline: Pipeline, tables: Tables, assignment: Assignment) -> None:
        self._pipeline = pipeline
        self._tables = tables
        self._assignment = assignment
        self._committed: dict[str, int] = {}

    def __call__(self, batch: Batch) -> None:
        pipeline = self._pipeline
        locations = self._tables.claim((tenant, pipeline.table) for tenant in batch.tenants.values())
        unseen = batch.unseen(lambda lanes: self._applied(lanes, batch, locations), self._assignment)
        messages = unseen.where(F.col("problem").isNull())
        messages.persist()
        try:
            seen = _count(messages)
            if seen:
                self._write(batch, messages, seen, locations)
            self._pass(batch)
        finally:
            messages.unpersist()

    def _applied(
        self, lanes: list[LaneName], batch: Batch, locations: Mapping[tuple[str, str], str]
    ) -> dict[LaneName, int]:
        mine = [lane for lane in lanes if lane.channel == self._pipeline.channel]
        names = {lane: self._mark(batch, lane, 0).application for lane in mine}
        unknown = {lane: name for lane, name in names.items() if name not in self._committed}
        places = {lane: locations[lane.tenant, self._pipeline.table] for lane in unknown}
        versions = self._tables.versions_of({places[lane]: name for lane, name in unknown.items()})
        for lane, name in unknown.items():
            self._committed[name] = max(versions[places[lane]], self._assignment.position(lane))
        return {lane: self._committed[name] for lane, name in names.items()}

    def _write(
        self,
        batch: Batch,
        messages: DataFrame,
        seen: Mapping[LaneName, Done],
        locations: Mapping[tuple[str, str], str],
    ) -> None:
        writing = Writing(self._pipeline, self._tables, locations)
        tried = try_lanes(messages, list(seen), writing)
        written = [row for rows in tried.results for row in rows]
        self._commit(batch, writing.schema, written, {lane: seen[lane] for lane in seen if lane not in tried.failed})
        for lane, problem in tried.failed.items():
            self._park(batch, lane, messages, seen[lane], writing, problem)

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
        if culprit > first:
            counted = _count(good)
            if counted:
                self._commit(batch, writing.schema, writing(good), counted)
        cause = find_cause(problem)
        self._assignment.parked(lane, culprit, cause.reason, cause.traceback)

    def _commit(
        self, batch: Batch, schema: pa.Schema | None, written: list[Written], seen: Mapping[LaneName, Done]
    ) -> None:
        done = dict(seen)
        files: dict[LaneName, list[File]] = {}
        for row in written:
            lane = LaneName(row["tenant"], self._pipeline.channel)
            before = done[lane]
            done[lane] = before._replace(stored=before.stored + row["size"], seconds=before.seconds + row["seconds"])
            files.setdefault(lane, []).append(File(row["file"], row["size"], row["rows"], row["statistics"]))
        locations = {
            lane: self._tables.lake.location(batch.tenants[lane.tenant], self._pipeline.table) for lane in files
        }
        assert schema is not None or not files
        STEP.emit(pipeline=self._pipeline.name, step="written")
        self._tables.commit_all(
            (locations[lane], schema, added, self._mark(batch, lane, done[lane].sequence))
            for lane, added in files.items()
        )
        STEP.emit(pipeline=self._pipeline.name, step="committed")
        self._assignment.advanced(done)
        self._committed |= dict(self._mark(batch, lane, each.sequence) for lane, each in done.items())

    def _pass(self, batch: Batch) -> None:
        """Lanes whose batch ended with events that the pipeline does not want are past those, too."""
        ends = {lane: Done(last) for lane, last in batch.ends.items() if not self._assignment.is_parked(lane)}
        self._assignment.advanced(ends)

    def _mark(self, batch: Batch, lane: LaneName, sequence: int) -> Mark:
        uid = batch.tenants[lane.tenant].uid
        return Mark(f"{self._pipeline.name}/{uid}/{lane.channel}", sequence)


class Writing:
    """The pipeline's function, and where its rows go."""

    def __init__(self, pipeline: Pipeline, tables: Tables, locations: Mapping[tuple[str, str], str]) -> None:
        self._pipeline = pipeline
        self._writer = FileWriter(tables.lake, locations, TABLE_COLUMN, (TABLE_COLUMN,))
        self.schema: pa.Schema | None = None

    def __call__(self, messages: DataFrame) -> list[Written]:
        rows = apply(self._pipeline, events_of(messages))
        self.schema = to_arrow_schema(rows.schema, timezone="UTC")
        named = rows.withColumn(TABLE_COLUMN, F.lit(self._pipeline.table))
        return [row.asDict() for row in named.mapInArrow(self._writer, WRITTEN_DDL).collect()]

    def run(self, messages: DataFrame) -> None:
        """The function alone; its rows go nowhere."""
        apply(self._pipeline, events_of(messages)).write.format("noop").mode("overwrite").save()

    def fails(self, messages: DataFrame) -> bool:
        try:
            self.run(messages)
        except AnalysisException:
            raise
        except Exception:
            return True
        return False


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
