"""Erases the tables of tenants that are gone: twice, for a batch that was under way may write after the first time."""

from __future__ import annotations

import asyncio
import time
from datetime import timedelta
from typing import Final

import psycopg

from tenantry.pipelines.lake import Lake
from tenantry.pipelines.table_registry import RegisteredTable, TableRegistry
from tenantry.postgres.pool import Pool
from tenantry.postgres.queries import Connection
from tenantry.telemetry import signal
from tenantry.tenants.audit import AuditLog

ERASED = signal("pipelines.tables_erased", "All tables of a tenant that is gone were erased.", "tenant", "locations")
FAILED = signal(
    "pipelines.table_erasure_failed",
    "A table of a tenant that is gone could not be erased; it is tried again.",
    "tenant",
    "location",
    "error",
    level="error",
)

ACTOR: Final = "maintenance"
AGAIN: Final = timedelta(seconds=60)
PUT_OFF_SECONDS: Final = 30.0


class Erasure:
    """Several may work at once: a table is erased by one of them at a time."""

    def __init__(
        self, pool: Pool, tables: TableRegistry, audit: AuditLog, lake: Lake, *, again: timedelta = AGAIN
    ) -> None:
        self._pool = pool
        self._tables = tables
        self._audit = audit
        self._lake = lake
        self._again = again
        self._put_off: dict[str, float] = {}

    async def work(self) -> None:
        now = time.monotonic()
        self._put_off = {location: until for location, until in self._put_off.items() if until > now}
        for table in await self._tables.erasable(self._again):
            if table.location in self._put_off:
                continue
            try:
                await self._erase(table)
            except psycopg.Error:
                raise
            except Exception as problem:
                # One store that is away does not keep the others.
                self._put_off[table.location] = time.monotonic() + PUT_OFF_SECONDS
                FAILED.emit(tenant=table.tenant_id, location=table.location, error=problem)
        async with self._pool.connection() as connection, connection.transaction():
            taken_over = await self._tables.tell_erasures(connection)
            for tenant, locations in taken_over.items():
                await self._tell(connection, tenant, locations)
        for tenant, locations in taken_over.items():
            ERASED.emit(tenant=tenant, locations=locations)

    async def _erase(self, table: RegisteredTable) -> None:
        # The row stays locked meanwhile: a new tenant of the same name gets the place when it is empty.
        async with self._pool.connection() as connection, connection.transaction():
            if not await self._tables.lock_erasable(connection, table):
                return
            await asyncio.to_thread(self._lake.erase, table.location)
            locations = await self._tables.mark_erased(connection, table)
            if locations:
                await self._tell(connection, table.tenant_id, locations)
        if locations:
            ERASED.emit(tenant=table.tenant_id, locations=locations)
        if table.erased_at is not None:
            await self._tables.forget(table)

    async def _tell(self, connection: Connection, tenant: str, locations: list[str]) -> None:
        await self._audit.append(connection, ACTOR, "tenant.tables_erased", tenant, after={"locations": locations})
