"""Webhook deliveries, each handled once: repeated ones and those that arrive side by side."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Final

from tenantry.postgres.pool import connect
from tenantry.postgres.queries import SqlFolder

REMEMBERED: Final = timedelta(days=30)
SIDE_BY_SIDE: Final = 4

_sql = SqlFolder("tenantry.api")


class Deliveries:
    """A delivery that is being handled has a connection outside of the pool.

    The work that it waits for takes connections from the pool, and must not wait for those that wait for it.
    """

    def __init__(self, database_url: str) -> None:
        self._url = database_url
        self._room = asyncio.Semaphore(SIDE_BY_SIDE)

    @asynccontextmanager
    async def once(self, id: str) -> AsyncIterator[bool]:
        """Whether the delivery is a new one. It counts as handled if the block ends without an error."""
        async with self._room, connect(self._url, autocommit=True) as connection, connection.transaction():
            await _sql.execute(connection, "lock_delivery", {"id": id})
            if await _sql.fetch_one(connection, "find_delivery", {"id": id}):
                yield False
                return
            yield True
            await _sql.execute(connection, "record_delivery", {"id": id})
            await _sql.execute(connection, "forget_deliveries", {"age": REMEMBERED})
