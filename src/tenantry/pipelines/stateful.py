"""A pipeline that keeps state: Spark keeps it, by query, so a batch is committed by its number.

Its rows come from events of several batches and have no sequence. All tenants are in one query, for state cannot be
handed from one query to another.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import to_arrow_schema

from tenantry.application import Pipeline
from tenantry.pipelines.assignment import SHARED, Assignment
from tenantry.pipelines.culprits import find_sequence, try_lanes
from tenantry.pipelines.events import events_of, read_messages
from tenantry.pipelines.keys import LaneName, lane_of
from tenantry.pipelines.offset_log import OffsetLog, Ranges
from tenantry.pipelines.progress import STEP, Database, Done
from tenantry.pipelines.queries import Course, PipelineQueries
from tenantry.pipelines.spark_errors import find_cause
from tenantry.pipelines.table_files import TENANT, WRITTEN_DDL, FileWriter
from tenantry.pipelines.tables import Commit, File, Mark, Tables
from tenantry.pipelines.transforming import TABLE_COLUMN, Writing, apply
from tenantry.postgres.queries import SqlFolder
from tenantry.tenants.tenant import Tenant

NAMESAKE: Final = (
    "a tenant of this name was deleted, and the pipeline still keeps its state; give the pipeline another name and "
    "table, and it takes the events of this one, too"
)

_sql = SqlFolder("tenantry.pipelines")


class StatefulPipeline(PipelineQueries):
    def __init__(
        self, assignment: Assignment, pipeline: Pipeline, tables: Tables, database: Database, course: Course
    ) -> None:
        super().__init__(assignment, course)
        self._database = database
        self._pipeline = pipeline
        self._tables = tables

    def _frame(self, messages: DataFrame) -> DataFrame:
        return apply(self._pipeline, events_of(messages))

    def _namesakes(self, query: str, tenants: Iterable[Tenant]) -> set[str]:
        """Tenants under whose name the query still keeps the state of another one, which is gone."""
        here = list(tenants)
        with self._database.connection() as connection:
            rows = connection.execute(
                _sql.text("note_stateful_tenants"),
                {"query": query, "tenants": [each.id for each in here], "uids": [each.uid for each in here]},
            ).fetchall()
        return {tenant for (tenant,) in rows}

    def _handle_batch(self, frame: DataFrame, number: int, ranges: Ranges) -> None:
        """Also without new events: time that has passed may have finished a window."""
        table = self._pipeline.table
        query = str(frame.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId"))
        tenants = {tenant.id: tenant for tenant in self._course.roster}
        namesakes = self._namesakes(query, tenants.values())
        for lane in {lane for key in ranges if (lane := lane_of(key)) and lane.tenant in namesakes}:
            self.assignment.parked(lane, None, NAMESAKE, "")
        locations = self._tables.claim((each, table) for each in tenants.values() if each.id not in namesakes)
        writer = FileWriter(self._tables.lake, locations, TABLE_COLUMN, (TABLE_COLUMN,))
        # What is left in the state of tenants that are gone is nobody's.
        rows = frame.where(F.col(TENANT).isin([tenant for tenant, _ in locations]))
        rows = rows.withColumn(TABLE_COLUMN, F.lit(table))
        written = [row.asDict() for row in rows.mapInArrow(writer, WRITTEN_DDL).collect()]
        files: dict[str, list[File]] = {}
        for row in written:
            file = File(row["file"], row["size"], row["rows"], row["statistics"])
            files.setdefault(row["tenant"], []).append(file)
        # Spark's own id of the query is another one with each new checkpoint, where batches are counted anew. Versions
        # are counted from one, for nought is what a table says that knows of none.
        mark = Mark(f"{self.name}/{query}", number + 1)
        schema = to_arrow_schema(frame.schema, timezone="UTC")
        STEP.emit(pipeline=self.name, step="written")
        problems = self._tables.commit_all(
            Commit(locations[tenant, table], tenants[tenant].uid, schema, added, mark)
            for tenant, added in files.items()
        )
        for problem in problems.values():
            raise problem
        STEP.emit(pipeline=self.name, step="committed")
        self.assignment.advanced(self._done(ranges, written))

    def _done(self, ranges: Ranges, written: list[dict[str, Any]]) -> dict[LaneName, Done]:
        ends = {lane: last for key, (_, last) in ranges.items() if (lane := lane_of(key))} | self._pool_ends(ranges)
        done = {lane: Done(last) for lane, last in ends.items()}
        for row in written:
            lane = LaneName(row["tenant"], self._pipeline.channel)
            if before := done.get(lane):
                done[lane] = Done(
                    before.sequence,
                    before.events + row["rows"],
                    before.bytes + row["bytes"],
                    before.stored + row["size"],
                    before.seconds + row["seconds"],
                )
        return done

    def _pool_ends(self, ranges: Ranges) -> dict[LaneName, int]:
        """How far the lanes of shared streams were read, which the rows do not tell."""
        pools = {key: span for key, span in ranges.items() if lane_of(key) is None}
        if not pools:
            return {}
        with self._course.reader.read(self.assignment.streams_planned(SHARED), pools) as messages:
            ends = read_messages(messages).groupBy("tenant", "channel").agg(F.max("sequence").alias("last")).collect()
        known = set(self.assignment.lanes_in(pools))
        return {lane: row.last for row in ends if (lane := LaneName(row.tenant, row.channel)) in known}

    def _recover(self, query: str) -> None:
        """Park the lanes that the batch failed on, as far as it fails without the state that there was before."""
        ranges = OffsetLog(self._course.reader.spark, self._checkpoint(query)).unfinished()
        with self._course.reader.read(self.assignment.streams_planned(query), ranges) as raw:
            messages = read_messages(raw, self._course.types).where(F.col("problem").isNull())
            spans = messages.groupBy("tenant", "channel").agg(F.min("sequence"), F.max("sequence")).collect()
            lanes = {LaneName(row[0], row[1]): (row[2], row[3]) for row in spans}
            writing = Writing(self._pipeline, self._tables, dict.fromkeys(lanes, ""))
            tried = try_lanes(messages, list(lanes), writing.run)
            for lane, problem in tried.failed.items():
                own = messages.where(F.col("lane") == str(lane))
                culprit = find_sequence(own, *lanes[lane], writing.fails)
                cause = find_cause(problem)
                self.assignment.parked(lane, culprit, cause.reason, cause.traceback)
