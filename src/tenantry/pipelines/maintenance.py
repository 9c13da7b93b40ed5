"""Looks after the tables of all tenants, one after the other, and erases those of tenants that are gone."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Final

import psycopg
from psycopg_pool import PoolTimeout

from tenantry.errors import DatabaseUnreachable
from tenantry.pipelines.erasure import Erasure
from tenantry.pipelines.lake import Lake
from tenantry.pipelines.table_registry import RegisteredTable, TableRegistry
from tenantry.pipelines.table_upkeep import TableUpkeep, Upkept
from tenantry.postgres.pool import Pool
from tenantry.service import side_by_side
from tenantry.telemetry import signal
from tenantry.tenants.audit import AuditLog
from tenantry.tenants.registry import Registry

MAINTAINED = signal(
    "pipelines.table_maintained",
    "A table was looked after: files were put together, rows past their time and files that nobody needs removed.",
    "tenant",
    "table",
    "files_before",
    "files_after",
    "bytes",
    "rows_deleted",
    "files_removed",
    "seconds",
    level="debug",
)
FAILED = signal(
    "pipelines.table_maintenance_failed",
    "A table could not be looked after; it is tried again in an hour, and the others go on.",
    "tenant",
    "table",
    "location",
    "error",
    level="error",
)
DATABASE_LOST = signal(
    "pipelines.table_registry_lost",
    "Which tables there are could not be read; it is tried again.",
    "error",
    level="warning",
)

EVERY: Final = timedelta(hours=1)
LOOK_SECONDS: Final = 10.0
ERASURE_SECONDS: Final = 1.0
DATABASE_PROBLEMS: Final = (psycopg.Error, PoolTimeout, DatabaseUnreachable)


class Maintenance:
    """A service. Several may run: a table is taken by one of them."""

    name = "table maintenance"

    def __init__(
        self, pool: Pool, tenants: Registry, audit: AuditLog, lake: Lake, *, upkeep: TableUpkeep | None = None
    ) -> None:
        self.tables = TableRegistry(pool)
        self.erasure = Erasure(pool, self.tables, audit, lake)
        self.upkeep = upkeep or TableUpkeep(lake)
        self._tenants = tenants

    async def start(self) -> None:
        pass

    async def run(self) -> None:
        await side_by_side(self._keep_maintaining(), self._keep_erasing())

    async def stop(self) -> None:
        pass

    def kill(self) -> None:
        pass

    async def maintain(self, tenant: str | None = None, table: str | None = None) -> None:
        """Now, whether it is their turn or not."""
        for each in await self.tables.all(tenant, table):
            await self.look_after(each)

    async def maintain_due(self) -> None:
        while table := await self.tables.take_due(EVERY):
            await self.look_after(table)

    async def look_after(self, table: RegisteredTable) -> Upkept | Exception | None:
        """What was done, or why it could not be; nothing, if there is no table yet or no tenant any more."""
        tenant = await self._tenants.find(table.tenant_id)
        if tenant is None or tenant.uid != table.tenant_uid:
            return None
        try:
            done = await asyncio.to_thread(
                self.upkeep.look_after, table.location, tenant.limits.table_retention, table.version
            )
        except Exception as problem:
            # A store that is away, or a table that somebody broke, is no reason to leave the other tenants' tables.
            FAILED.emit(tenant=table.tenant_id, table=table.name, location=table.location, error=problem)
            return problem
        if done is None:
            return None
        await self.tables.record(table, done.figures)
        MAINTAINED.emit(
            tenant=table.tenant_id,
            table=table.name,
            files_before=done.files_before,
            files_after=done.figures.files,
            bytes=done.figures.bytes,
            rows_deleted=done.rows_deleted,
            files_removed=done.files_removed,
            seconds=done.seconds,
        )
        return done

    async def _keep_maintaining(self) -> None:
        while True:
            try:
                await self.maintain_due()
            except DATABASE_PROBLEMS as problem:
                DATABASE_LOST.emit(error=problem)
            await asyncio.sleep(LOOK_SECONDS)

    async def _keep_erasing(self) -> None:
        while True:
            try:
                await self.erasure.work()
            except DATABASE_PROBLEMS as problem:
                DATABASE_LOST.emit(error=problem)
            await asyncio.sleep(ERASURE_SECONDS)
