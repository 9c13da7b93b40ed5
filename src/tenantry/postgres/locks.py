"""Locks across processes, by name. A process holds all of its own through one connection; a crash lets go of them."""

from __future__ import annotations

import asyncio
import random
from collections import Counter, defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Final

import psycopg

from tenantry.errors import DatabaseUnreachable
from tenantry.postgres.pool import open_connection
from tenantry.postgres.queries import Connection, SqlFolder

POLL_SECONDS: Final = 0.05

_sql = SqlFolder("tenantry.postgres")


class Lease:
    """What the holder of a lock has: it can ask whether it still holds it."""

    def __init__(self, locks: Locks, session: int) -> None:
        self._locks = locks
        self._session = session

    def require(self) -> None:
        """Raise if the lock may be somebody else's by now: with its connection a process loses all that it held."""
        if self._locks.session != self._session:
            raise DatabaseUnreachable("the connection to PostgreSQL broke, and with it the lock; this is tried again")


class Locks:
    """Waiting for a lock takes no connection from the pool, however many wait and however long."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._turns: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._waiting: Counter[str] = Counter()
        self._asking = asyncio.Lock()
        self._connection: Connection | None = None
        self._connected = 0

    @classmethod
    @asynccontextmanager
    async def open(cls, url: str) -> AsyncIterator[Locks]:
        locks = cls(url)
        try:
            yield locks
        finally:
            if locks._connection is not None:
                await locks._connection.close()

    @property
    def session(self) -> int:
        """Which of our connections holds the locks; 0 if it has broken."""
        return self._connected if self._connection is not None and not self._connection.closed else 0

    @asynccontextmanager
    async def hold(self, name: str) -> AsyncIterator[Lease]:
        """Nobody else holds the lock of this name meanwhile, in this process or another."""
        self._waiting[name] += 1
        try:
            async with self._turns[name]:
                try:
                    while not await self._ask("try_lock", name):
                        await asyncio.sleep(POLL_SECONDS * (0.5 + random.random()))
                    yield Lease(self, self._connected)
                finally:
                    # Even if it was not to be had: a question that was broken off may have got it.
                    await asyncio.shield(self._let_go(name))
        finally:
            self._waiting[name] -= 1
            if not self._waiting[name]:
                del self._waiting[name], self._turns[name]

    async def _let_go(self, name: str) -> None:
        with suppress(psycopg.Error, DatabaseUnreachable):
            if self.session:
                await self._ask("unlock", name)

    async def _ask(self, query: str, name: str) -> bool:
        async with self._asking:
            for may_try_again in (query != "unlock", False):
                if not self.session:
                    self._connection = await open_connection(self._url)
                    self._connected += 1
                assert self._connection is not None
                try:
                    row = await _sql.fetch_one(self._connection, query, {"name": name})
                except psycopg.OperationalError as problem:
                    # With the connection all that it held is gone. It may have been idle since before a restart.
                    await self._connection.close()
                    if not may_try_again:
                        raise DatabaseUnreachable(f"the connection to PostgreSQL broke: {problem}") from problem
                else:
                    return bool(row and row["done"])
        raise AssertionError
