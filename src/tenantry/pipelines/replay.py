"""Fills a tenant's tables again from its events: chunk by chunk, each in the place of the rows that were there."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import to_arrow_schema

from tenantry.application import WAREHOUSE, Pipeline
from tenantry.errors import TenantConflict, TenantNotFound
from tenantry.event import EVERY_TYPE, type_expression
from tenantry.pipelines.events import EVENT_COLUMNS
from tenantry.pipelines.history import History, Span
from tenantry.pipelines.keys import LaneName
from tenantry.pipelines.progress import Progress
from tenantry.pipelines.running_job import RunningJob
from tenantry.pipelines.table_files import TENANT
from tenantry.pipelines.transforming import apply
from tenantry.pipelines.warehouse import SCHEMA

if TYPE_CHECKING:
    from tenantry.pipelines.engine import Engine

CHUNK: Final = 10_000
SHARE: Final = 0.5
"""Of the time; for the rest it leaves the machine to the pipelines."""
SEQUENCE: Final = "sequence"


class Replay:
    """To repeat a chunk changes nothing, so it may be broken off anywhere."""

    def __init__(self, engine: Engine, job: RunningJob) -> None:
        self._engine = engine
        self._job = job
        self._pipeline = _find_pipeline(engine, job.pipeline)
        self._history = History(engine)

    def run(self) -> None:
        spans: dict[str, list[int]] = self._job.progress.setdefault("spans", {})
        if not spans:
            spans |= {lane.channel: list(span) for lane, span in self._choose().items()}
        at: dict[str, int] = self._job.progress.setdefault("at", {})
        total = sum(max(0, last - first + 1) for first, last in spans.values())
        self._job.report(_done(spans, at), total)
        for channel, (first, last) in spans.items():
            lane = LaneName(str(self._job.tenant_id), channel)
            for start in range(at.get(channel, first), last + 1, CHUNK):
                began = time.monotonic()
                chunk = Span(start, min(start + CHUNK - 1, last))
                self._replay(lane, chunk)
                at[channel] = chunk.last + 1
                self._job.report(_done(spans, at), total)
                if chunk.last < last:
                    self._job.rest((time.monotonic() - began) * (1 / SHARE - 1))

    def _choose(self) -> dict[LaneName, Span]:
        """From where to where, of each lane: never further than the pipeline is itself."""
        request, wanted = self._job.request, self._job.request.get("channel")
        positions = Progress(self._engine.database, self._job.pipeline).load()
        lanes = sorted(
            lane for lane in positions if lane.tenant == self._job.tenant_id and wanted in (None, lane.channel)
        )
        if not lanes:
            raise TenantNotFound(
                f"pipeline {self._job.pipeline} has read nothing of "
                f"{'/'.join(filter(None, (self._job.tenant_id, wanted)))} yet, so there is nothing to replay"
            )
        found = {}
        for lane in lanes:
            first = request.get("from_sequence") or 1
            if request.get("from"):
                first = self._history.first_since(lane, _moment(request["from"]))
            last = positions[lane].sequence
            if request.get("to"):
                last = min(last, self._history.first_since(lane, _moment(request["to"])) - 1)
            found[lane] = Span(first, last)
        return found

    def _replay(self, lane: LaneName, chunk: Span) -> None:
        tenant, _ = self._history.place(lane)
        table = self._pipeline.table if self._pipeline else lane.channel
        types = self._pipeline.types if self._pipeline else (EVERY_TYPE,)
        expression = None if EVERY_TYPE in types else type_expression(types)
        # The warehouse cannot be filled from itself.
        with self._history.read({lane: chunk}, expression, with_tables=self._pipeline is not None) as events:
            if events is None:
                return
            events.persist()
            try:
                seen = events.select(SEQUENCE).toArrow()[SEQUENCE].combine_chunks()
                if len(seen) == 0:
                    return
                made = self._transform(events)
                rows = made.toArrow().cast(to_arrow_schema(made.schema, timezone="UTC"))
            finally:
                events.unpersist()
        _require_own(rows, lane, self._job.pipeline)
        location = self._engine.tables.claim([(tenant, table)])[tenant.id, table]
        self._engine.tables.replace(location, *chunk, rows, seen)

    def _transform(self, events: DataFrame) -> DataFrame:
        if self._pipeline is None:
            return events.select(*[F.to_json(name).alias(name) if name == "data" else name for name in SCHEMA.names])
        rows = apply(self._pipeline, events.select(*EVENT_COLUMNS))
        if SEQUENCE not in rows.columns:
            raise TenantConflict(
                f"pipeline {self._pipeline.name} cannot be replayed, for its rows do not say which event they are of: "
                f"keep the column {SEQUENCE} in them"
            )
        return rows


def _find_pipeline(engine: Engine, name: str) -> Pipeline | None:
    """None is the warehouse."""
    if name == WAREHOUSE:
        return None
    application = engine.application
    if application and name in application.projections:
        raise TenantConflict(f"{name} is a projection and has no table; use `tenantry projection rebuild {name}`")
    pipeline = application.pipelines.get(name) if application else None
    if pipeline is None:
        raise TenantConflict(
            f"the application that the pipelines run has no pipeline {name}; declare it, then start them anew"
        )
    if pipeline.stateful:
        raise TenantConflict(
            f"pipeline {name} keeps state: its rows depend on more than one event, so those of some events cannot be "
            "made again; give the pipeline another name and table, and it reads everything anew"
        )
    return pipeline


def _require_own(rows: pa.Table, lane: LaneName, pipeline: str) -> None:
    others = [owner for owner in pc.unique(rows[TENANT]).to_pylist() if owner != lane.tenant]
    if others:
        raise LookupError(f"pipeline {pipeline} gave rows of tenant {others[0]!r} for events of tenant {lane.tenant}")


def _moment(text: str) -> datetime:
    moment = datetime.fromisoformat(text)
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def _done(spans: dict[str, list[int]], at: dict[str, int]) -> int:
    return sum(at[channel] - first for channel, (first, _) in spans.items() if channel in at)
