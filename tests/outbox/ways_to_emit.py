"""Every kind of connection that events can be emitted through, each in a transaction of its own."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from inspect import isawaitable
from typing import Any

import asyncpg  # type: ignore[import-untyped]
import psycopg
from psycopg.rows import dict_row
from sqlalchemy import NullPool, create_engine
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session, scoped_session, sessionmaker


@dataclass
class Transaction:
    """`connection` is what is given to `emit`; the rest is what an application does with it."""

    connection: Any
    commit: Callable[[], Any]
    rollback: Callable[[], Any]


Way = Callable[[str], AbstractAsyncContextManager[Transaction]]


async def settle(result: Any) -> Any:
    """The outcome, whether or not it has to be waited for."""
    return await result if isawaitable(result) else result


@asynccontextmanager
async def psycopg_connection(url: str) -> AsyncIterator[Transaction]:
    with psycopg.connect(url) as connection:
        yield Transaction(connection, connection.commit, connection.rollback)


@asynccontextmanager
async def psycopg_cursor(url: str) -> AsyncIterator[Transaction]:
    with psycopg.connect(url) as connection, connection.cursor(row_factory=dict_row) as cursor:
        yield Transaction(cursor, connection.commit, connection.rollback)


@asynccontextmanager
async def psycopg_async_connection(url: str) -> AsyncIterator[Transaction]:
    async with await psycopg.AsyncConnection.connect(url) as connection:
        yield Transaction(connection, connection.commit, connection.rollback)


@asynccontextmanager
async def psycopg_async_cursor(url: str) -> AsyncIterator[Transaction]:
    async with await psycopg.AsyncConnection.connect(url) as connection, connection.cursor() as cursor:
        yield Transaction(cursor, connection.commit, connection.rollback)


@asynccontextmanager
async def asyncpg_connection(url: str) -> AsyncIterator[Transaction]:
    connection = await asyncpg.connect(url)
    transaction = connection.transaction()
    await transaction.start()
    yield Transaction(connection, transaction.commit, transaction.rollback)
    await connection.close()


@asynccontextmanager
async def asyncpg_pool(url: str) -> AsyncIterator[Transaction]:
    async with asyncpg.create_pool(url, min_size=1, max_size=1) as pool, pool.acquire() as connection:
        transaction = connection.transaction()
        await transaction.start()
        yield Transaction(connection, transaction.commit, transaction.rollback)


@asynccontextmanager
async def sqlalchemy_connection(url: str) -> AsyncIterator[Transaction]:
    with create_engine(_dialect(url, "psycopg"), poolclass=NullPool).connect() as connection:
        yield Transaction(connection, connection.commit, connection.rollback)


@asynccontextmanager
async def sqlalchemy_session(url: str) -> AsyncIterator[Transaction]:
    with Session(create_engine(_dialect(url, "psycopg"), poolclass=NullPool)) as session:
        yield Transaction(session, session.commit, session.rollback)


@asynccontextmanager
async def sqlalchemy_scoped_session(url: str) -> AsyncIterator[Transaction]:
    session = scoped_session(sessionmaker(create_engine(_dialect(url, "psycopg"), poolclass=NullPool)))
    yield Transaction(session, session.commit, session.rollback)
    session.remove()


@asynccontextmanager
async def sqlalchemy_async_connection(url: str) -> AsyncIterator[Transaction]:
    async with create_async_engine(_dialect(url, "psycopg_async"), poolclass=NullPool).connect() as connection:
        yield Transaction(connection, connection.commit, connection.rollback)


@asynccontextmanager
async def sqlalchemy_async_session_over_asyncpg(url: str) -> AsyncIterator[Transaction]:
    async with AsyncSession(create_async_engine(_dialect(url, "asyncpg"), poolclass=NullPool)) as session:
        yield Transaction(session, session.commit, session.rollback)


def _dialect(url: str, driver: str) -> str:
    return url.replace("postgresql://", f"postgresql+{driver}://")


WAYS: list[Way] = [
    psycopg_connection,
    psycopg_cursor,
    psycopg_async_connection,
    psycopg_async_cursor,
    asyncpg_connection,
    asyncpg_pool,
    sqlalchemy_connection,
    sqlalchemy_session,
    sqlalchemy_scoped_session,
    sqlalchemy_async_connection,
    sqlalchemy_async_session_over_asyncpg,
]
