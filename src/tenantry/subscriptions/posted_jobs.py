"""The jobs that a fleet has taken: a post for each process, until somebody stops them or another fleet has them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Final
from uuid import UUID, uuid4

import psycopg
from psycopg_pool import PoolTimeout

from tenantry.postgres.pool import Pool
from tenantry.postgres.queries import SqlFolder
from tenantry.subscriptions.post import Post, Spawn
from tenantry.subscriptions.worker import HOST
from tenantry.subscriptions.worker_jobs import WorkerJob
from tenantry.telemetry import signal

TAKEN = signal("subscriptions.job_taken", "A fleet starts workers for one tenant alone.", "job", "tenant", "count")
ENDED = signal("subscriptions.job_ended", "A fleet has stopped the workers of one tenant.", "job", "tenant", "reason")
AWAY = signal(
    "subscriptions.jobs_away",
    "What workers are asked for cannot be read; those that run go on.",
    "error",
    level="warning",
)

LOOK_SECONDS: Final = 0.5
LEASE_SECONDS: Final = 10.0
"""A fleet that has said nothing for so long has lost its jobs to others."""

_AWAY: Final = (psycopg.OperationalError, psycopg.InterfaceError, PoolTimeout)
_sql = SqlFolder("tenantry.subscriptions")

DedicatedTenants = Callable[[], Iterable[str]]


class PostedJobs:
    def __init__(
        self,
        pool: Pool,
        app: str,
        spawn: Spawn,
        *,
        dedicated: DedicatedTenants | None = None,
        lease_seconds: float = LEASE_SECONDS,
    ) -> None:
        """`dedicated`: the tenants that get a worker of their own without anybody asking for it."""
        self._pool = pool
        self._app = app
        self._spawn = spawn
        self._dedicated = dedicated
        self._lease_seconds = lease_seconds
        self._fleet = uuid4()
        self._jobs: dict[UUID, WorkerJob] = {}
        self._posts: dict[UUID, list[Post]] = {}
        self._ending: dict[UUID, asyncio.Task[None]] = {}

    async def run(self) -> None:
        while True:
            try:
                await self._attend()
            except _AWAY as problem:
                AWAY.emit(error=problem)
            for id, posts in self._posts.items():
                if id not in self._ending:
                    for post in posts:
                        post.care()
            await asyncio.sleep(LOOK_SECONDS)

    async def stop(self) -> None:
        """Other fleets may have them; what runs here drains."""
        with suppress(*_AWAY):
            async with self._pool.connection() as connection:
                await _sql.execute(connection, "worker_job_release", {"fleet": self._fleet})
        for id in list(self._posts):
            self._end(id, "its fleet stops")
        await asyncio.gather(*self._ending.values())

    def kill(self) -> None:
        for posts in self._posts.values():
            for post in posts:
                post.kill()

    async def _attend(self) -> None:
        await self._follow_plans()
        for id in list(self._jobs):
            await self._report(id)
        await self._take()

    async def _follow_plans(self) -> None:
        if self._dedicated is None:
            return
        asked = {"app": self._app, "tenants": list(self._dedicated())}
        async with self._pool.connection() as connection:
            await _sql.execute(connection, "worker_job_want", asked)
            await _sql.execute(connection, "worker_job_unwant", asked)

    async def _take(self) -> None:
        asked = {"fleet": self._fleet, "host": HOST, "app": self._app, "lease": self._lease_seconds}
        async with self._pool.connection() as connection:
            rows = await _sql.fetch_all(connection, "worker_job_take", asked)
        for row in rows:
            job = WorkerJob(**row)
            if job.id in self._jobs:
                # It was ours until the database did not hear of us for a while.
                continue
            self._jobs[job.id] = job
            if job.state == "stopping":
                # The fleet that had it is gone, and its processes with it.
                self._posts[job.id] = []
                self._end(job.id, "it was asked for")
                continue
            flags = ["--worker-tenants", job.tenant_id, "--worker-plans", ""]
            self._posts[job.id] = [Post(f"{job.tenant_id}-{n + 1}", self._spawn, flags) for n in range(job.count)]
            TAKEN.emit(job=str(job.id), tenant=job.tenant_id, count=job.count)

    async def _report(self, id: UUID) -> None:
        posts = self._posts[id]
        problems = [post.problem for post in posts if post.problem and post.pid is None]
        report = {
            "id": id,
            "fleet": self._fleet,
            "state": "failed" if problems else "running",
            "pids": [post.pid for post in posts if post.pid is not None],
            "problem": "; ".join(dict.fromkeys(post.problem for post in posts if post.problem)),
        }
        async with self._pool.connection() as connection:
            row = await _sql.fetch_one(connection, "worker_job_report", report)
        if row is None:
            self._end(id, "it is not this fleet's any more")
        elif row["state"] == "stopping":
            self._end(id, "it was asked for")

    def _end(self, id: UUID, reason: str) -> None:
        if id not in self._ending:
            self._ending[id] = asyncio.create_task(self._drain(id, reason), name=f"end of job {id}")

    async def _drain(self, id: UUID, reason: str) -> None:
        job = self._jobs[id]
        await asyncio.gather(*(post.stop() for post in self._posts[id]))
        with suppress(*_AWAY):
            # What was lost to another fleet, or released, is not touched by this.
            async with self._pool.connection() as connection:
                await _sql.execute(connection, "worker_job_end", {"id": id, "fleet": self._fleet})
        del self._jobs[id], self._posts[id], self._ending[id]
        ENDED.emit(job=str(id), tenant=job.tenant_id, reason=reason)
