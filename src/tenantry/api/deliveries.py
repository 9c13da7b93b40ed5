"""Webhook deliveries, each handled once and none after a newer one, be they repeated, late, or side by side."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final

from tenantry.postgres.pool import connect
from tenantry.postgres.queries import SqlFolder

REMEMBERED: Final = timedelta(days=30)
SIDE_BY_SIDE: Final = 4

_sql = SqlFolder("tenantry.api")


class Outcome(StrEnum):
    HANDLED = "handled"
    DUPLICATE = "duplicate"
    OUTDATED = "outdated"
    """Something newer was heard of the account."""
    IGNORED = "ignored"


class Deliveries:
    """A delivery that is being handled has a connection outside of the pool.

    The work that it waits for takes connections from the pool, and must not wait for those that wait for it.
    """

    def __init__(self, database_url: str) -> None:
        self._url = database_url
        self._room = asyncio.Semaphore(SIDE_BY_SIDE)

    @asynccontextmanager
    async def once(self, id: str, account: str, happened_at: datetime | None) -> AsyncIterator[Outcome]:
        """What is to be done with a delivery. It counts as handled if the block ends without an error."""
        delivery = {"id": id, "account": account, "happened_at": happened_at}
        async with self._room, connect(self._url, autocommit=True) as connection, connection.transaction():
            await _sql.execute(connection, "lock_delivery", delivery)
            found = await _sql.fetch_one(connection, "find_delivery", delivery)
            assert found is not None
            if found["is_duplicate"]:
                yield Outcome.DUPLICATE
                return
            yield Outcome.OUTDATED if found["is_outdated"] else Outcome.HANDLED
            await _sql.execute(connection, "record_delivery", delivery)
            await _sql.execute(connection, "forget_deliveries", {"age": REMEMBERED})
