"""Locks across processes, by name. A process holds all of its own through one connection; a crash lets go of them."""

from __future__ import annotations

import asyncio
import random
from collections import Counter, defaultdict
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Final

import psycopg

from tenantry.postgres.pool import connect
from tenantry.postgres.queries import Connection, SqlFolder

POLL_SECONDS: Final = 0.05

_sql = SqlFolder("tenantry.postgres")


class Locks:
    """Waiting for a lock takes no connection from the pool, however many wait and however long."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._turns: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._waiting: Counter[str] = Counter()
        self._asking = asyncio.Lock()
        self._connection: Connection | None = None
        self._stack = AsyncExitStack()

    @classmethod
    @asynccontextmanager
    async def open(cls, url: str) -> AsyncIterator[Locks]:
        locks = cls(url)
        async with locks._stack:
            yield locks

    @asynccontextmanager
    async def hold(self, name: str) -> AsyncIterator[None]:
        """Nobody else holds the lock of this name meanwhile, in this process or another."""
        self._waiting[name] += 1
        try:
            async with self._turns[name]:
                while not await self._ask("try_lock", name):
                    await asyncio.sleep(POLL_SECONDS * (0.5 + random.random()))
                try:
                    yield
                finally:
                    await self._ask("unlock", name)
        finally:
            self._waiting[name] -= 1
            if not self._waiting[name]:
                del self._waiting[name], self._turns[name]

    async def _ask(self, query: str, name: str) -> bool:
        async with self._asking:
            if self._connection is None or self._connection.closed:
                self._connection = await self._stack.enter_async_context(connect(self._url, autocommit=True))
            try:
                row = await _sql.fetch_one(self._connection, query, {"name": name})
            except psycopg.OperationalError:
                # With the connection all that it held is gone; whoever asks next gets a new one.
                await self._connection.close()
                if query == "unlock":
                    return False
                raise
        return bool(row and row["done"])
