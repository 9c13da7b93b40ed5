"""How far a pipeline is on each lane, in PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple
from uuid import UUID

from psycopg import Connection
from psycopg.rows import dict_row
from psycopg_pool import ConnectionPool

from tenantry.pipelines.keys import LaneName
from tenantry.postgres.queries import SqlFolder
from tenantry.telemetry import signal

Database = ConnectionPool[Connection[Any]]

STEP = signal(
    "pipelines.step",
    "A batch has come to a point behind which something is for good.",
    "pipeline",
    "step",
    level="debug",
)

_sql = SqlFolder("tenantry.pipelines")


@dataclass(slots=True)
class LaneState:
    """Where a pipeline is on a lane."""

    id: UUID
    """What tables remember of it."""
    sequence: int
    """The last one that was applied."""
    epoch: int
    query: str
    """Who reads it."""
    place: str
    is_parked: bool = False


class Done(NamedTuple):
    """What a batch did for a lane."""

    sequence: int
    events: int = 0
    bytes: int = 0
    stored: int = 0
    seconds: float = 0.0


class Progress:
    """May be used from any thread."""

    def __init__(self, database: Database, pipeline: str) -> None:
        self._database = database
        self.pipeline = pipeline

    def load(self) -> dict[LaneName, LaneState]:
        with self._database.connection() as connection, connection.cursor(row_factory=dict_row) as cursor:
            cursor.execute(_sql.text("lanes_of_pipeline"), {"pipeline": self.pipeline})
            return {LaneName(row.pop("tenant_id"), row.pop("channel")): LaneState(**row) for row in cursor.fetchall()}

    def put(self, lanes: Mapping[LaneName, LaneState]) -> None:
        """Lanes that are new, or read by somebody else, or from somewhere else."""
        self._execute(
            "put_lanes",
            **_columns(lanes),
            ids=[state.id for state in lanes.values()],
            sequences=[state.sequence for state in lanes.values()],
            epochs=[state.epoch for state in lanes.values()],
            queries=[state.query for state in lanes.values()],
            places=[state.place for state in lanes.values()],
        )

    def advance(self, done: Mapping[LaneName, Done]) -> None:
        self._execute(
            "advance_lanes",
            **_columns(done),
            sequences=[each.sequence for each in done.values()],
            events=[each.events for each in done.values()],
            bytes=[each.bytes for each in done.values()],
            stored=[each.stored for each in done.values()],
            seconds=[each.seconds for each in done.values()],
        )

    def park(self, lane: LaneName, sequence: int | None, reason: str, traceback: str) -> None:
        self._execute(
            "park_lane",
            tenant=lane.tenant,
            channel=lane.channel,
            sequence=sequence,
            reason=reason,
            traceback=traceback,
        )

    def _execute(self, name: str, **parameters: object) -> None:
        with self._database.connection() as connection:
            connection.execute(_sql.text(name), {"pipeline": self.pipeline} | parameters)


def _columns(lanes: Iterable[LaneName]) -> dict[str, list[str]]:
    named = list(lanes)
    return {"tenants": [lane.tenant for lane in named], "channels": [lane.channel for lane in named]}
