"""Replays and rebuilds as they are asked for; the process that runs the pipelines does them."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal
from uuid import UUID

import msgspec
from psycopg.types.json import Jsonb

from tenantry.errors import TenantConflict, TenantNotFound
from tenantry.postgres.queries import SqlFolder
from tenantry.tenants.administration import Administration

Kind = Literal["replay", "rebuild"]

_sql = SqlFolder("tenantry.pipelines")


class Job(msgspec.Struct, frozen=True, kw_only=True):
    id: UUID
    kind: str
    pipeline: str
    tenant_id: str | None
    request: dict[str, Any]
    state: str
    done: int
    """Sequences that it is past, of `total`."""
    total: int | None
    problem: str
    asked_by: str
    asked_at: datetime
    updated_at: datetime

    @property
    def has_ended(self) -> bool:
        return self.state in ("cancelled", "done", "failed")

    @property
    def is_waiting(self) -> bool:
        return self.state == "waiting"

    @property
    def failed(self) -> int:
        """It fails as a whole, or not at all."""
        return 0

    @property
    def title(self) -> str:
        return f"{self.kind} of {self.pipeline}" + (f" for {self.tenant_id}" if self.tenant_id else "")

    @property
    def unit(self) -> str:
        return "sequences"


class JobDesk:
    listing = "tenantry pipeline jobs"
    nobody = (
        "No pipeline process has taken the job yet: `tenantry serve pipeline` or `tenantry up` starts one, unless "
        "another job is under way (`tenantry pipeline jobs`)."
    )

    def __init__(self, administration: Administration) -> None:
        self._administration = administration
        self._pool = administration.pool

    async def ask(
        self, kind: Kind, pipeline: str, tenant: str | None, actor: str, request: dict[str, Any] | None = None
    ) -> Job:
        """It waits until the pipeline process takes it, one after the other."""
        if tenant is not None:
            await self._administration.registry.get(tenant)
        asked = {"kind": kind, "pipeline": pipeline, "tenant": tenant, "actor": actor, "request": Jsonb(request or {})}
        async with self._pool.connection() as connection, connection.transaction():
            if not await _sql.fetch_all(connection, "list_lanes", {"pipeline": pipeline, "tenant": tenant}):
                raise TenantNotFound(
                    f"no pipeline {pipeline} has read an event{f' of tenant {tenant}' if tenant else ''} yet; "
                    "`tenantry pipeline list` shows those that have"
                )
            row = await _sql.fetch_one(connection, "ask_job", asked)
            assert row is not None
            about = {"name": pipeline, "job": str(row["id"]), **row["request"]}
            await self._administration.audit.append(connection, actor, f"pipeline.{kind}", tenant, after=about)
        return Job(**row)

    async def newest(self, limit: int) -> list[Job]:
        async with self._pool.connection() as connection:
            return [Job(**row) for row in await _sql.fetch_all(connection, "list_jobs", {"limit": limit})]

    async def get(self, id: str) -> Job:
        """The beginning of its id is enough."""
        async with self._pool.connection() as connection:
            found = await _sql.fetch_all(connection, "find_jobs", {"id": id.lower()})
        if not id or not found:
            raise TenantNotFound(f"there is no job {id!r}; `tenantry pipeline jobs` lists them")
        if len(found) > 1:
            raise TenantConflict(f"the ids of several jobs begin with {id}; give more of it")
        return Job(**found[0])

    async def cancel(self, id: str, actor: str) -> Job:
        """One that runs ends soon; what it has done so far is undone if it was aside, and else stays."""
        job = await self.get(id)
        async with self._pool.connection() as connection, connection.transaction():
            row = await _sql.fetch_one(connection, "cancel_job", {"id": job.id})
            if row is None:
                raise TenantConflict(f"job {job.id} has ended already: it is {job.state}")
            about = {"name": job.pipeline, "job": str(job.id)}
            await self._administration.audit.append(connection, actor, "pipeline.cancel", job.tenant_id, after=about)
        return Job(**row)
