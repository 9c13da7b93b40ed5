"""The warehouse: every event of every channel, once, in a table of its tenant's."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import LongType, StringType, StructField, StructType, TimestampType

from tenantry.pipelines.assignment import Assignment
from tenantry.pipelines.batch import Batch
from tenantry.pipelines.culprits import try_lanes
from tenantry.pipelines.dead_letters import bury
from tenantry.pipelines.keys import LaneName
from tenantry.pipelines.progress import STEP, Done
from tenantry.pipelines.spark_errors import find_cause
from tenantry.pipelines.table_files import WRITTEN, WRITTEN_DDL, FileWriter, divide
from tenantry.pipelines.table_positions import TablePositions, finish_batch
from tenantry.pipelines.tables import Commit, File, Tables
from tenantry.telemetry import signal

BURIED = signal(
    "pipelines.event_buried",
    "Messages of a lane are no events, and went to the dead letters.",
    "tenant",
    "channel",
    "count",
    level="warning",
)

_TEXT: Final = StringType()
_COLUMNS: Final = StructType(
    [
        StructField("tenant", _TEXT),
        StructField("channel", _TEXT),
        StructField("type", _TEXT),
        StructField("id", _TEXT),
        StructField("source", _TEXT),
        StructField("subject", _TEXT),
        StructField("time", TimestampType()),
        StructField("data", _TEXT),
        StructField("trace", _TEXT),
        StructField("sequence", LongType()),
        StructField("received", TimestampType()),
    ]
)
SCHEMA: Final = to_arrow_schema(_COLUMNS, timezone="UTC")
BESIDES: Final = ("bytes", "problem", "payload", "address")


class Warehouse:
    """Writes batches into the tables of channels."""

    def __init__(
        self, tables: Tables, assignment: Assignment, database_url: str, reserved: Container[str] = ()
    ) -> None:
        """`reserved` are tables of the application, which no channel may have."""
        self._tables = tables
        self._assignment = assignment
        self._database_url = database_url
        self._reserved = reserved
        self._positions = TablePositions(tables, assignment)

    def __call__(self, batch: Batch) -> None:
        self._park_reserved(batch)
        lanes = [lane for lane in batch.lanes if not self._assignment.is_parked(lane)]
        claimed = self._tables.claim((batch.tenants[lane.tenant], lane.channel) for lane in lanes)
        locations = {lane: claimed[lane] for lane in lanes}
        applied = self._positions.find(lanes, locations)
        messages = batch.unseen(applied, self._assignment)
        tried = try_lanes(messages, list(applied), lambda part: self._write(part, claimed))
        if len(tried.failed) > 1 and len(tried.failed) == len(applied):
            # Whatever it is, it is not about a lane.
            raise next(iter(tried.failed.values()))
        for lane, problem in tried.failed.items():
            self._assignment.set_aside(lane, find_cause(problem).reason)
        written = [row for rows in tried.results for row in rows]
        self._commit(batch, locations, written, applied.keys() - tried.failed.keys())

    def _park_reserved(self, batch: Batch) -> None:
        for lane in batch.lanes:
            if lane.channel in self._reserved and not self._assignment.is_parked(lane):
                reason = f"the application has a table {lane.channel!r}: give that or the channel another name"
                self._assignment.parked(lane, None, reason, "")

    def _write(self, messages: DataFrame, claimed: Mapping[tuple[str, str], str]) -> list[dict[str, Any]]:
        rows = messages.select(
            *[F.to_json("data").alias("data") if field.name == "data" else field.name for field in _COLUMNS], *BESIDES
        )
        writer = WarehouseWriter(FileWriter(self._tables.lake, claimed, "channel", BESIDES), self._database_url)
        return [row.asDict() for row in rows.mapInArrow(writer, WRITTEN_DDL).collect()]

    def _commit(
        self,
        batch: Batch,
        locations: Mapping[LaneName, str],
        written: list[dict[str, Any]],
        going_on: Container[LaneName],
    ) -> None:
        done = {lane: Done(last) for lane, last in batch.ends.items() if lane in going_on}
        files: dict[LaneName, list[File]] = {}
        for row in written:
            lane = LaneName(row["tenant"], row["table"])
            before = done.get(lane, Done(0))
            done[lane] = Done(
                sequence=max(before.sequence, row["last"]),
                events=before.events + row["rows"],
                bytes=before.bytes + row["bytes"],
                stored=before.stored + row["size"],
                seconds=before.seconds + row["seconds"],
            )
            if row["file"]:
                file = File(row["file"], row["size"], row["rows"], row["statistics"])
                files.setdefault(lane, []).append(file)
            else:
                BURIED.emit(tenant=lane.tenant, channel=lane.channel, count=row["rows"])
        STEP.emit(pipeline=self._assignment.progress.pipeline, step="written")
        commits = {
            lane: Commit(
                locations[lane],
                batch.tenants[lane.tenant].uid,
                SCHEMA,
                added,
                self._positions.mark(lane, done[lane].sequence),
            )
            for lane, added in files.items()
        }
        finish_batch(self._tables, self._assignment, self._positions, commits, done)


@dataclass(frozen=True, slots=True)
class WarehouseWriter:
    """For `DataFrame.mapInArrow`: what is an event is written, what is none goes to the dead letters."""

    files: FileWriter
    database_url: str = field(repr=False)

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        buried: list[dict[str, Any]] = []
        yield from self.files(self._events(batches, buried))
        if buried:
            yield pa.RecordBatch.from_pylist(buried, schema=WRITTEN)

    def _events(self, batches: Iterator[pa.RecordBatch], buried: list[dict[str, Any]]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            problems = batch.column("problem")
            if problems.null_count == len(batch):
                yield batch
                continue
            dead = batch.filter(pc.is_valid(problems))
            bury(self.database_url, dead)
            for (tenant, channel), part in divide(dead, "tenant", "channel"):
                ends = pc.min_max(part.column("sequence")).as_py()
                buried.append(
                    {
                        "tenant": tenant,
                        "table": channel,
                        "size": 0,
                        "rows": len(part),
                        "first": ends["min"],
                        "last": ends["max"],
                        "bytes": pc.sum(part.column("bytes")).as_py(),
                        "seconds": 0.0,
                    }
                )
            yield batch.filter(pc.is_null(problems))
