"""The tables that there are, in PostgreSQL: whose, where, and how large they were when somebody last looked."""

from __future__ import annotations

from contextlib import suppress
from datetime import datetime, timedelta
from typing import Any, Final
from uuid import UUID

import msgspec
import psycopg

from tenantry.pipelines.table_upkeep import Figures
from tenantry.postgres.pool import Pool
from tenantry.postgres.queries import Connection, SqlFolder

LOCK_TIMEOUT: Final = "set local lock_timeout = '1s'"

_sql = SqlFolder("tenantry.pipelines")


class RegisteredTable(msgspec.Struct, frozen=True, kw_only=True):
    tenant_id: str
    tenant_uid: UUID
    name: str
    location: str
    rows: int
    bytes: int
    files: int
    version: int
    maintained_at: datetime | None
    erased_at: datetime | None

    def with_figures(self, figures: Figures) -> RegisteredTable:
        return msgspec.structs.replace(self, **msgspec.structs.asdict(figures))


class TableRegistry:
    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    async def all(self, tenant: str | None = None, name: str | None = None) -> list[RegisteredTable]:
        """The tables of tenants that there are, by tenant and name."""
        return await self._fetch("list_tables", tenant=tenant, name=name)

    async def take_due(self, every: timedelta) -> RegisteredTable | None:
        """The one that needs it most, if one has not been looked after for so long; nobody else gets it then."""
        found = await self._fetch("take_due_table", every=every)
        return found[0] if found else None

    async def record(self, table: RegisteredTable, figures: Figures) -> None:
        async with self._pool.connection() as connection:
            about = {"location": table.location, "uid": table.tenant_uid}
            await _sql.execute(connection, "record_table", msgspec.structs.asdict(figures) | about)

    async def erasable(self, again: timedelta) -> list[RegisteredTable]:
        """The tables of tenants that are gone: those that are not erased yet, and those that were so long ago."""
        return await self._fetch("erasable_tables", again=again)

    async def lock_erasable(self, connection: Connection, table: RegisteredTable) -> bool:
        """Whether it is ours to erase, until the transaction ends: not if somebody does, or a new tenant has it."""
        about = {"location": table.location, "uid": table.tenant_uid}
        return await _sql.fetch_one(connection, "lock_erasable_table", about) is not None

    async def mark_erased(self, connection: Connection, table: RegisteredTable) -> list[str]:
        """All that the tenant had, if this was the last of its tables."""
        row = await _sql.fetch_one(
            connection, "mark_table_erased", {"location": table.location, "uid": table.tenant_uid}
        )
        return list(row["locations"]) if row and row["is_all"] else []

    async def tell_erasures(self, connection: Connection) -> dict[str, list[str]]:
        """What was erased of tenants whose place another of the same name has taken; each is told once."""
        rows = await _sql.fetch_all(connection, "tell_erasures")
        return {row["tenant_id"]: list(row["locations"]) for row in rows}

    async def forget(self, table: RegisteredTable) -> None:
        """Unless a new tenant of that name has it. While somebody claims tables it is put off."""
        with suppress(psycopg.errors.LockNotAvailable):
            async with self._pool.connection() as connection, connection.transaction():
                # A claim that is under way may have seen the row: it must still be there when it is taken over.
                await connection.execute(LOCK_TIMEOUT)
                await _sql.execute(connection, "lock_tables")
                await _sql.execute(connection, "forget_table", {"location": table.location, "uid": table.tenant_uid})

    async def _fetch(self, query: str, **parameters: Any) -> list[RegisteredTable]:
        async with self._pool.connection() as connection:
            rows = await _sql.fetch_all(connection, query, parameters)
        return [RegisteredTable(**row) for row in rows]
