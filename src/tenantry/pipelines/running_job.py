"""A job while it is done: what was asked for, how far it is, and whether it is to end."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID

import psycopg
from psycopg.types.json import Jsonb
from psycopg_pool import PoolClosed, PoolTimeout

from tenantry.pipelines.progress import Database
from tenantry.postgres.queries import SqlFolder

LOOK_SECONDS: Final = 0.5
AWAY: Final = (psycopg.OperationalError, PoolTimeout, PoolClosed)
"""The database is: nobody can say what became of the job, and it is carried on when it is back."""

_sql = SqlFolder("tenantry.pipelines")


class Cancelled(Exception):
    """Somebody does not want it any more."""


class Stopped(Exception):
    """The process ends, and the next one carries it on."""


@dataclass(slots=True)
class RunningJob:
    database: Database
    stopping: threading.Event
    id: UUID
    kind: str
    pipeline: str
    tenant_id: str | None
    request: Mapping[str, Any]
    progress: dict[str, Any]
    """What the process that carries it on has to know."""

    def report(self, done: int, total: int) -> None:
        """Keep what is in `progress`, too; and end here if it is not to go on."""
        with self.database.connection() as connection:
            row = connection.execute(
                _sql.text("report_job"),
                {"id": self.id, "done": min(done, total), "total": total, "progress": Jsonb(self.progress)},
            ).fetchone()
        self._require_wanted(row)

    def rest(self, seconds: float) -> None:
        """Leave the machine to others for so long."""
        while seconds > 0:
            self.stopping.wait(min(seconds, LOOK_SECONDS))
            seconds -= LOOK_SECONDS
            with self.database.connection() as connection:
                row = connection.execute(_sql.text("state_of_job"), {"id": self.id}).fetchone()
            self._require_wanted(row)

    def _require_wanted(self, row: tuple[Any, ...] | None) -> None:
        if row is None or row[0] == "cancelling":
            # With its tenant, its jobs are gone, too.
            raise Cancelled
        if self.stopping.is_set():
            raise Stopped
