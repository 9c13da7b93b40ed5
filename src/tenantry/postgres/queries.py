"""Queries live in `.sql` files, one each, and this runs them.

migrations = SqlFolder("tenantry.postgres")
rows = await migrations.fetch_all(connection, "applied_migrations")

What several queries begin with has a file of its own, and `{{its_name}}` in another one stands for it, in parentheses.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from importlib.resources import files
from typing import Any, Final

from psycopg import AsyncConnection
from psycopg.rows import DictRow, dict_row

Connection = AsyncConnection[Any]
Parameters = Mapping[str, Any] | None

_OTHER_FILE: Final = re.compile(r"\{\{(\w+)\}\}")


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
    text = (files(package) / "sql" / f"{name}.sql").read_text()
    return _OTHER_FILE.sub(lambda found: f"(\n{_read(package, found[1])})", text)
