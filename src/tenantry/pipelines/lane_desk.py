"""How far pipelines are on their lanes, and lanes that are parked: looked at and resumed from outside."""

from __future__ import annotations

from datetime import datetime

import msgspec

from tenantry.errors import TenantConflict, TenantNotFound
from tenantry.postgres.queries import SqlFolder
from tenantry.tenants.administration import Administration

_sql = SqlFolder("tenantry.pipelines")


class PipelineStatus(msgspec.Struct, frozen=True, kw_only=True):
    pipeline: str
    tenants: int
    lanes: int
    parked: int
    updated_at: datetime


class LaneStatus(msgspec.Struct, frozen=True, kw_only=True):
    tenant_id: str
    channel: str
    sequence: int
    """The last one that was applied."""
    query: str
    generation: int
    parked_at: datetime | None
    parked_sequence: int | None
    parked_reason: str | None
    parked_traceback: str | None
    updated_at: datetime


class Resumed(msgspec.Struct, frozen=True, kw_only=True):
    channel: str
    sequence: int


class LaneDesk:
    def __init__(self, administration: Administration) -> None:
        self._administration = administration
        self._pool = administration.pool

    async def pipelines(self) -> list[PipelineStatus]:
        async with self._pool.connection() as connection:
            return [PipelineStatus(**row) for row in await _sql.fetch_all(connection, "list_pipelines")]

    async def lanes(self, pipeline: str, tenant: str | None = None) -> list[LaneStatus]:
        """Those that are parked first."""
        async with self._pool.connection() as connection:
            rows = await _sql.fetch_all(connection, "list_lanes", {"pipeline": pipeline, "tenant": tenant})
        if not rows:
            raise TenantNotFound(
                f"no pipeline {pipeline} has read an event{f' of tenant {tenant}' if tenant else ''} yet; "
                "`tenantry pipeline list` shows those that have"
            )
        return [LaneStatus(**row) for row in rows]

    async def resume(self, tenant: str, pipeline: str, channel: str | None, actor: str) -> list[Resumed]:
        """The lanes go on with the event at which they were parked, in order."""
        await self._administration.registry.get(tenant)
        known = [lane.channel for lane in await self.lanes(pipeline, tenant)]
        if channel is not None and channel not in known:
            raise TenantNotFound(
                f"pipeline {pipeline} has not read channel {channel} of tenant {tenant}, only {', '.join(known)}"
            )
        async with self._pool.connection() as connection, connection.transaction():
            rows = await _sql.fetch_all(
                connection, "resume_lanes", {"pipeline": pipeline, "tenant": tenant, "channel": channel}
            )
            if not rows:
                raise TenantConflict(
                    f"pipeline {pipeline} is not parked on {f'{tenant}/{channel}' if channel else f'tenant {tenant}'}; "
                    f"`tenantry pipeline show {pipeline} --tenant {tenant}` shows where it is"
                )
            about = {"name": pipeline, "lanes": {row["channel"]: row["sequence"] for row in rows}}
            await self._administration.audit.append(connection, actor, "pipeline.resume", tenant, after=about)
        return [Resumed(**row) for row in rows]
