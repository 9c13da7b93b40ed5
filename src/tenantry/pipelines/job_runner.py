"""Does the jobs that were asked for, one at a time, in a thread beside the pipelines."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Final

import psycopg
from psycopg.rows import dict_row

from tenantry.errors import TenantryError
from tenantry.pipelines.progress import Database
from tenantry.pipelines.rebuild import Rebuild
from tenantry.pipelines.replay import Replay
from tenantry.pipelines.running_job import AWAY, Cancelled, RunningJob, Stopped
from tenantry.pipelines.spark_errors import find_cause
from tenantry.postgres.queries import SqlFolder
from tenantry.telemetry import signal

if TYPE_CHECKING:
    from tenantry.pipelines.engine import Engine

BEGAN = signal("pipelines.job_began", "A replay or a rebuild is under way.", "job", "kind", "pipeline", "tenant")
ENDED = signal(
    "pipelines.job_ended",
    "A replay or a rebuild has ended.",
    "job",
    "kind",
    "pipeline",
    "tenant",
    "state",
    "problem",
    "seconds",
)

LOOK_SECONDS: Final = 0.5

_sql = SqlFolder("tenantry.pipelines")


class JobRunner:
    """A job that was under way when the process ended is carried on by the next one."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    def keep(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="jobs", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """What is under way ends where it can be carried on."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join(timeout=30)

    def _run(self) -> None:
        self._engine.spark.sparkContext.setLocalProperty("spark.scheduler.pool", "jobs")
        while not self._stopping.wait(LOOK_SECONDS):
            try:
                job = self._take()
                if job is not None:
                    self._do(job)
            except Stopped:
                return
            except (psycopg.Error, *AWAY):
                # It is still on record as running, and taken again.
                continue

    def _take(self) -> RunningJob | None:
        with self._database.connection() as connection, connection.cursor(row_factory=dict_row) as cursor:
            row = cursor.execute(_sql.text("take_job")).fetchone()
        return RunningJob(self._database, self._stopping, **row) if row else None

    def _do(self, job: RunningJob) -> None:
        about = {"job": str(job.id), "kind": job.kind, "pipeline": job.pipeline, "tenant": job.tenant_id}
        BEGAN.emit(**about)
        began = time.monotonic()
        state, problem = self._attempt(job)
        with self._database.connection() as connection:
            connection.execute(_sql.text("end_job"), {"id": job.id, "state": state, "problem": problem})
        ENDED.emit(**about, state=state, problem=problem, seconds=time.monotonic() - began)

    def _attempt(self, job: RunningJob) -> tuple[str, str]:
        try:
            work = Rebuild(self._engine, job) if job.kind == "rebuild" else Replay(self._engine, job)
            work.run()
        except (Stopped, *AWAY):
            raise
        except Cancelled:
            return "cancelled", ""
        except TenantryError as problem:
            return "failed", str(problem)
        except Exception as problem:
            if self._stopping.is_set():
                raise Stopped from problem
            return "failed", find_cause(problem).reason
        return "done", ""

    @property
    def _database(self) -> Database:
        return self._engine.database
