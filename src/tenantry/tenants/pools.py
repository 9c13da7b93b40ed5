"""The streams that lanes of the pooled tier share: which lanes each of them takes, the registry says."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from typing import Any

from tenantry.nats.jetstream import Config, JetStream
from tenantry.postgres.locks import Locks
from tenantry.postgres.pool import Pool
from tenantry.postgres.queries import SqlFolder
from tenantry.tenants.lanes import Lanes
from tenantry.tenants.streams import ensure_stream

_sql = SqlFolder("tenantry.tenants")


class Pools:
    def __init__(self, pool: Pool, locks: Locks, lanes: Lanes, jetstream: JetStream) -> None:
        self._pool = pool
        self._locks = locks
        self._lanes = lanes
        self._jetstream = jetstream
        self._turns: defaultdict[int, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._asked: defaultdict[int, int] = defaultdict(int)
        self._settled: defaultdict[int, int] = defaultdict(int)

    async def settle(self, number: int) -> None:
        """Make the stream take the lanes that the registry gives it.

        Those who wait while one is at it share the next turn: a hundred new tenants are a change or two of the stream.
        """
        self._asked[number] += 1
        mine = self._asked[number]
        async with self._turns[number]:
            if self._settled[number] >= mine:
                return
            covered = self._asked[number]
            await self._apply(number)
            self._settled[number] = covered

    async def wanted(self) -> list[Config]:
        """How all shared streams should be."""
        async with self._pool.connection() as connection:
            rows = await _sql.fetch_all(connection, "pools", {"number": None})
        return [self._config(row) for row in rows]

    async def _apply(self, number: int) -> None:
        # Another process with an older list must not overwrite ours.
        async with self._locks.hold(f"pool/{number}"):
            async with self._pool.connection() as connection:
                row = await _sql.fetch_one(connection, "pools", {"number": number})
            if row is not None:
                await ensure_stream(self._jetstream, self._config(row))

    def _config(self, row: dict[str, Any]) -> Config:
        return self._lanes.pool_config(row["number"], row["retention"], row["lanes"])
