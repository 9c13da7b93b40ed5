"""Workers of their own for tenants, as they are asked for; a fleet that runs starts and stops them."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Final, Literal
from uuid import UUID

import msgspec

from tenantry.errors import TenantConflict, TenantInvalid, TenantNotFound
from tenantry.postgres.queries import SqlFolder
from tenantry.subscriptions.id_prefix import ids_from
from tenantry.tenants.administration import Administration

MOST_PROCESSES: Final = 100

State = Literal["waiting", "running", "failed", "stopping", "stopped"]
Origin = Literal["asked", "plan"]

_sql = SqlFolder("tenantry.subscriptions")


class WorkerJob(msgspec.Struct, frozen=True, kw_only=True):
    id: UUID
    tenant_id: str
    app: str
    """The application whose fleet is to run it; empty: any."""
    count: int
    origin: Origin
    state: State
    host: str
    pids: list[int]
    """Its processes, on that host."""
    problem: str
    asked_by: str
    asked_at: datetime
    updated_at: datetime

    def describe(self) -> dict[str, Any]:
        document: dict[str, Any] = msgspec.to_builtins(self)
        return document


class WorkerJobs:
    def __init__(self, administration: Administration) -> None:
        self._administration = administration
        self._pool = administration.pool

    async def ask(self, tenant: str, actor: str, *, count: int = 1, app: str = "") -> WorkerJob:
        """It waits until a fleet takes it."""
        if not 1 <= count <= MOST_PROCESSES:
            raise TenantInvalid("count", f"expected count to be 1 to {MOST_PROCESSES}, got: {count}")
        await self._administration.registry.get(tenant)
        asked = {"tenant": tenant, "app": app, "count": count, "actor": actor}
        async with self._pool.connection() as connection, connection.transaction():
            row = await _sql.fetch_one(connection, "worker_job_ask", asked)
            assert row is not None
            about = {"job": str(row["id"]), "count": count, "app": app}
            await self._administration.audit.append(connection, actor, "worker.start", tenant, after=about)
        return WorkerJob(**row)

    async def newest(self, limit: int) -> list[WorkerJob]:
        """Those that are over come last."""
        async with self._pool.connection() as connection:
            return [WorkerJob(**row) for row in await _sql.fetch_all(connection, "worker_job_list", {"limit": limit})]

    async def get(self, id: str) -> WorkerJob:
        """The beginning of its id is enough."""
        async with self._pool.connection() as connection:
            found = await _sql.fetch_all(connection, "worker_job_find", ids_from(id)._asdict())
        if not found:
            raise TenantNotFound(f"there is no job {id!r} of a worker; `tenantry worker list` lists them")
        if len(found) > 1:
            raise TenantConflict(f"the ids of several jobs begin with {id}; give more of it")
        return WorkerJob(**found[0])

    async def stop(self, id: str, actor: str) -> WorkerJob:
        """Its processes drain; the tenant's events are then handled by others."""
        job = await self.get(id)
        async with self._pool.connection() as connection, connection.transaction():
            row = await _sql.fetch_one(connection, "worker_job_stop", {"id": job.id})
            if row is None:
                raise TenantConflict(f"job {job.id} of tenant {job.tenant_id} has stopped already")
            about = {"job": str(job.id), "state": row["state"]}
            await self._administration.audit.append(connection, actor, "worker.stop", job.tenant_id, after=about)
        return WorkerJob(**row)
