"""Connections to PostgreSQL."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

import psycopg
from psycopg import AsyncConnection
from psycopg.conninfo import conninfo_to_dict
from psycopg_pool import AsyncConnectionPool

from tenantry.errors import DatabaseUnreachable

APPLICATION: Final = "tenantry"
CONNECT_SECONDS: Final = 5

Pool = AsyncConnectionPool[AsyncConnection[Any]]


@asynccontextmanager
async def open_pool(url: str, size: int) -> AsyncIterator[Pool]:
    """A pool that has shown it can connect; DatabaseUnreachable says why it cannot."""
    # The pool retries in silence for its whole timeout, so one plain attempt goes first to give the reason.
    async with connect(url):
        pass
    pool: Pool = AsyncConnectionPool(
        url,
        min_size=1,
        max_size=size,
        open=False,
        # A transaction that is wanted is opened in so many words; none is left open by a query that only reads.
        kwargs={"application_name": APPLICATION, "autocommit": True},
        check=Pool.check_connection,
    )
    async with pool:
        yield pool


@asynccontextmanager
async def connect(url: str, *, autocommit: bool = False) -> AsyncIterator[AsyncConnection[Any]]:
    """One connection outside of a pool."""
    async with await open_connection(url, autocommit=autocommit) as connection:
        yield connection


async def open_connection(url: str, *, autocommit: bool = True) -> AsyncConnection[Any]:
    """Connect now, or DatabaseUnreachable says why not."""
    try:
        return await psycopg.AsyncConnection.connect(
            url, autocommit=autocommit, application_name=APPLICATION, connect_timeout=CONNECT_SECONDS
        )
    except psycopg.OperationalError as problem:
        raise DatabaseUnreachable(
            f"cannot connect to PostgreSQL at {_place(url)}: {_first_line(problem)}; check DATABASE_URL or PGHOST "
            "(without them the embedded one is used)"
        ) from problem
    except psycopg.ProgrammingError:
        # The driver's own words would repeat the address, and with it the password.
        raise DatabaseUnreachable(
            "expected DATABASE_URL to be an address like postgresql://user:password@host:5432/database, with special "
            "characters of the password as %XX, got something else"
        ) from None


def _place(url: str) -> str:
    """Host, port and database, without the password."""
    parts = conninfo_to_dict(url)
    host = parts.get("host") or os.environ.get("PGHOST", "the default host")
    port = parts.get("port") or os.environ.get("PGPORT", "5432")
    return f"{host}:{port}/{parts.get('dbname') or os.environ.get('PGDATABASE', '')}"


def _first_line(problem: Exception) -> str:
    return str(problem).strip().splitlines()[0]
