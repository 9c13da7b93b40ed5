"""Queries live in `.sql` files, one each, and this runs them.

migrations = SqlFolder("tenantry.postgres")
rows = await migrations.fetch_all(connection, "applied_migrations")
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from importlib.resources import files
from typing import Any

from psycopg import AsyncConnection
from psycopg.rows import DictRow, dict_row

Connection = AsyncConnection[Any]
Parameters = Mapping[str, Any] | None


class SqlFolder:
    """The `sql` folder of a package."""

    def __init__(self, package: str) -> None:
        self._package = package

    def text(self, name: str) -> str:
        return _read(self._package, name)

    async def execute(self, connection: Connection, name: str, parameters: Parameters = None) -> int:
        """Run a statement; how many rows it touched."""
        cursor = await connection.execute(self.text(name), parameters)
        return cursor.rowcount

    async def fetch_all(self, connection: Connection, name: str, parameters: Parameters = None) -> list[DictRow]:
        async with connection.cursor(row_factory=dict_row) as cursor:
            await cursor.execute(self.text(name), parameters)
            return await cursor.fetchall()

    async def fetch_one(self, connection: Connection, name: str, parameters: Parameters = None) -> DictRow | None:
        async with connection.cursor(row_factory=dict_row) as cursor:
            await cursor.execute(self.text(name), parameters)
            return await cursor.fetchone()


@lru_cache
def _read(package: str, name: str) -> str:
    return (files(package) / "sql" / f"{name}.sql").read_text()
