"""Upkeep of the outbox: partitions ahead, old ones dropped, and a word when a transaction holds events back."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any, Final

import psycopg
from psycopg import sql

from tenantry.errors import DatabaseUnreachable
from tenantry.outbox.log import EVERY_LANE
from tenantry.postgres.pool import connect
from tenantry.postgres.queries import Connection, SqlFolder
from tenantry.telemetry import signal

DROPPED = signal("outbox.partition_dropped", "Published events left the outbox.", "partition")
DROP_DELAYED = signal(
    "outbox.partition_busy",
    "A partition cannot be dropped now; it is tried again.",
    "partition",
    "error",
    level="debug",
)
MAKING_DELAYED = signal(
    "outbox.partitions_busy",
    "Partitions for the next hours cannot be made now; it is tried again.",
    "error",
    level="debug",
)
STALLED = signal(
    "outbox.stalled",
    "A transaction that emitted has been open for long; what was emitted to its lanes after it waits for it.",
    "pid",
    "application",
    "user",
    "seconds",
    "lanes",
    "tenant",
    level="warning",
)
FAILED = signal("outbox.upkeep_failed", "The outbox could not be looked after.", "error", level="warning")

LENGTH: Final = timedelta(hours=1)
CLOCK_SLACK: Final = timedelta(minutes=1)
"""So far may a clock be set back."""
UPKEEP_SECONDS: Final = 5.0
# Whoever emits would queue behind us if we queued behind somebody.
LOCK_TIMEOUT: Final = "set local lock_timeout = '100ms'"

_sql = SqlFolder("tenantry.outbox")


class Upkeep:
    """A service. Several may run; one works at a time."""

    name = "outbox upkeep"

    def __init__(
        self,
        url: str,
        *,
        keep: int,
        stall_seconds: int,
        once_keep: int = 30 * 86_400,
        length: timedelta = LENGTH,
        clock_slack: timedelta = CLOCK_SLACK,
    ) -> None:
        self._url = url
        self._keep = keep
        self._stall_seconds = stall_seconds
        self._once_keep = once_keep
        self._length = length
        self._clock_slack = clock_slack

    async def start(self) -> None:
        await self.work()

    async def run(self) -> None:
        while True:
            await asyncio.sleep(UPKEEP_SECONDS)
            try:
                await self.work()
            except (psycopg.Error, DatabaseUnreachable) as problem:
                FAILED.emit(error=problem)

    async def stop(self) -> None:
        pass

    def kill(self) -> None:
        pass

    async def work(self) -> None:
        async with connect(self._url, autocommit=True) as connection:
            if await self._is_ours(connection):
                await self._make_partitions(connection)
                await self._retire_rows(connection)
                await self._report_stalls(connection)
                await _sql.execute(connection, "forget_handled", {"keep": self._once_keep})

    async def _is_ours(self, connection: Connection) -> bool:
        row = await _sql.fetch_one(connection, "try_upkeep")
        return bool(row and row["done"])

    async def _make_partitions(self, connection: Connection) -> None:
        try:
            async with connection.transaction():
                await connection.execute(LOCK_TIMEOUT)
                await _sql.execute(connection, "due_partitions", {"length": self._length, "ahead": 6 * self._length})
        except psycopg.errors.LockNotAvailable as problem:
            # There are others for hours to come, and what fits in none of them is kept all the same.
            MAKING_DELAYED.emit(error=problem)

    async def _retire_rows(self, connection: Connection) -> None:
        await _sql.execute(connection, "raise_floor", {"slack": self._clock_slack})
        await _sql.execute(connection, "close_partitions")
        # In a statement before the one that relies on it.
        horizon = await _sql.fetch_all(connection, "horizon")
        everyone = min(row["ticket"] for row in horizon if row["lane"] in (None, EVERY_LANE))
        held = [row for row in horizon if row["lane"] not in (None, EVERY_LANE)]
        lanes, tickets = [row["lane"] for row in held], [row["ticket"] for row in held]
        await _sql.execute(connection, "raise_cursors", {"horizon": everyone, "lanes": lanes, "tickets": tickets})
        await _sql.execute(connection, "sweep_erased", {"horizon": everyone, "held": lanes})
        for row in await _sql.fetch_all(connection, "droppable_partitions", {"keep": self._keep}):
            if not await self._drop(connection, row["name"]):
                break
            await _sql.execute(connection, "forget_batches", {"before": row["ends_at"]})
        await _sql.execute(connection, "empty_other", {"keep": self._keep})

    async def _drop(self, connection: Connection, name: str) -> bool:
        """Whether it could be dropped now. It keeps everybody who emits waiting, so it must be quick."""
        try:
            async with connection.transaction():
                await connection.execute(LOCK_TIMEOUT)
                await connection.execute(sql.SQL("drop table tenantry.{}").format(sql.Identifier(name)))
                await _sql.execute(connection, "forget_partition", {"name": name})
        except psycopg.errors.LockNotAvailable as problem:
            DROP_DELAYED.emit(partition=name, error=problem)
            return False
        DROPPED.emit(partition=name)
        return True

    async def _report_stalls(self, connection: Connection) -> None:
        for stall in await self.stalls(connection, self._stall_seconds):
            STALLED.emit(
                pid=stall["pid"],
                application=stall["application_name"],
                user=stall["user"],
                seconds=stall["seconds"],
                lanes=stall["lanes"],
                tenant=stall["tenant"],
            )

    @staticmethod
    async def stalls(connection: Connection, seconds: float) -> list[dict[str, Any]]:
        """Transactions that emitted and have been open for so long."""
        return list(await _sql.fetch_all(connection, "stalls", {"seconds": seconds}))
