"""The warehouse: every event of every channel, once, in a table of its tenant's."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import LongType, StringType, StructField, StructType, TimestampType

from tenantry.pipelines.assignment import Assignment
from tenantry.pipelines.batch import Batch
from tenantry.pipelines.dead_letters import bury
from tenantry.pipelines.keys import LaneName
from tenantry.pipelines.progress import STEP, Done
from tenantry.pipelines.table_files import WRITTEN, WRITTEN_DDL, FileWriter, divide
from tenantry.pipelines.tables import File, Mark, Tables
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

    def __init__(self, name: str, tables: Tables, assignment: Assignment, database_url: str) -> None:
        self._name = name
        self._tables = tables
        self._assignment = assignment
        self._database_url = database_url
        self._committed: dict[str, int] = {}
        """By the name under which it was committed: a tenant that is made anew under its old name is another one."""

    def __call__(self, batch: Batch) -> None:
        locations = self._tables.claim((batch.tenants[lane.tenant], lane.channel) for lane in batch.lanes)
        messages = batch.unseen(lambda lanes: self._applied(lanes, batch, locations), self._assignment)
        rows = messages.select(
            *[F.to_json("data").alias("data") if field.name == "data" else field.name for field in _COLUMNS], *BESIDES
        )
        writer = WarehouseWriter(FileWriter(self._tables.lake, locations, "channel", BESIDES), self._database_url)
        written = [row.asDict() for row in rows.mapInArrow(writer, WRITTEN_DDL).collect()]
        self._commit(batch, locations, written)

    def _applied(
        self, lanes: list[LaneName], batch: Batch, locations: Mapping[tuple[str, str], str]
    ) -> dict[LaneName, int]:
        names = {lane: self._mark(batch, lane, 0).application for lane in lanes}
        unknown = {lane: name for lane, name in names.items() if name not in self._committed}
        versions = self._tables.versions_of({locations[lane]: name for lane, name in unknown.items()})
        for lane, name in unknown.items():
            self._committed[name] = max(versions[locations[lane]], self._assignment.position(lane))
        return {lane: self._committed[name] for lane, name in names.items()}

    def _commit(self, batch: Batch, locations: Mapping[tuple[str, str], str], written: list[dict[str, Any]]) -> None:
        done = {lane: Done(last) for lane, last in batch.ends.items()}
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
        STEP.emit(pipeline=self._name, step="written")
        self._tables.commit_all(
            (locations[lane], SCHEMA, added, self._mark(batch, lane, done[lane].sequence))
            for lane, added in files.items()
        )
        STEP.emit(pipeline=self._name, step="committed")
        self._assignment.advanced(done)
        self._committed |= dict(self._mark(batch, lane, each.sequence) for lane, each in done.items())

    def _mark(self, batch: Batch, lane: LaneName, sequence: int) -> Mark:
        """By the lane's own sequence, which goes on through moves: nothing is repeated, whichever query reads it."""
        return Mark(f"{self._name}/{batch.tenants[lane.tenant].uid}/{lane.channel}", sequence)


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
