"""A database that is away for a while."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import psycopg
from psycopg import sql


@asynccontextmanager
async def without_database(superuser: str, url: str) -> AsyncIterator[None]:
    """Nobody can connect to it, and whoever was connected is not any more."""
    name = url.rpartition("/")[2]
    change = "alter database {} allow_connections {}"
    async with await psycopg.AsyncConnection.connect(superuser, autocommit=True) as admin:
        await admin.execute(sql.SQL(change).format(sql.Identifier(name), sql.Literal(False)))
        await admin.execute("select pg_terminate_backend(pid) from pg_stat_activity where datname = %s", [name])
        try:
            yield
        finally:
            await admin.execute(sql.SQL(change).format(sql.Identifier(name), sql.Literal(True)))
