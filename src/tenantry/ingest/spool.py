"""The spool: events that their stream cannot take now are written to the outbox, from where the relay publishes them.

A lane that was spooled stays so until the relay has published what is there, so that nothing overtakes it. On a busy
lane there is always something; as soon as the relay keeps up, those who come wait for a moment until it has the last.
An event that may have been stored all the same is written, too: it has the same message id, so the stream drops the
second one.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Final, NamedTuple

import psycopg
from psycopg_pool import PoolTimeout

from tenantry.errors import NowhereToStore, TenantConflict
from tenantry.ingest.reading import Message
from tenantry.postgres.pool import Pool
from tenantry.postgres.queries import Connection, SqlFolder
from tenantry.service import end
from tenantry.telemetry import signal
from tenantry.tenants.lanes import Lane

SPOOLED = signal("ingest.spooled", "Events were written to the outbox, for their stream took none.", "events", "lanes")
UNWRITABLE = signal(
    "ingest.spool_failed",
    "Events could be written neither to their stream nor to the outbox.",
    "error",
    level="warning",
)
RELEASED = signal("ingest.spool_released", "What was spooled is published; a lane takes events directly again.", "lane")

WRITE_SECONDS: Final = 5.0
FOLLOW_SECONDS: Final = 0.1
# How long those who come wait while a lane is handed back, and the pause after an attempt that led nowhere.
HANDOVER_SECONDS: Final = 1.0
HANDOVER_STEP: Final = 0.01
HANDOVER_PAUSE: Final = 5.0
GROUP_EVENTS: Final = 1000
GROUP_BYTES: Final = 8 << 20

DATABASE_AWAY: Final = (psycopg.OperationalError, psycopg.InterfaceError, PoolTimeout, TimeoutError, OSError)

Key = tuple[str, str]

_sql = SqlFolder("tenantry.ingest")


class Mark(NamedTuple):
    """The newest row of a lane: what the relay has to pass."""

    lane: int
    ticket: int
    id: int


class _Entry:
    """The events of one request."""

    __slots__ = ("key", "messages", "size", "written")

    def __init__(self, key: Key, messages: Sequence[Message]) -> None:
        self.key = key
        self.messages = messages
        self.size = sum(each.size for each in messages)
        self.written: asyncio.Future[None] = asyncio.get_running_loop().create_future()


class _Gate(NamedTuple):
    """In front of a lane that is about to be released."""

    opened: asyncio.Future[None]
    deadline: float


class Spool:
    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._queue: list[_Entry] = []
        self._filled = asyncio.Event()
        self._under_way: dict[Key, int] = {}
        self._marks: dict[Key, Mark] = {}
        self._gates: dict[Key, _Gate] = {}
        self._retry_at: dict[Key, float] = {}
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        self._tasks = [
            asyncio.create_task(self._write(), name="ingest spool"),
            asyncio.create_task(self._follow(), name="ingest spool follower"),
        ]

    async def stop(self) -> None:
        await end(self._tasks)
        for key in list(self._gates):
            self._open_gate(key)

    async def holds(self, lane: Lane) -> bool:
        """Whether something of the lane waits here, so that the next must wait behind it."""
        key = (lane.tenant, lane.channel)
        if key in self._gates:
            await asyncio.shield(self._gates[key].opened)
        return key in self._marks or key in self._under_way

    async def look(self, lane: Lane) -> None:
        """Hold the lane if its outbox has something to publish: another process may have spooled, or this one before.

        While the database is away nobody can tell, and the lane is not held.
        """
        key = (lane.tenant, lane.channel)
        try:
            async with asyncio.timeout(WRITE_SECONDS), self._pool.connection() as connection:
                parameters = {"tenant": lane.tenant, "channel": lane.channel}
                row = await _sql.fetch_one(connection, "pending_of_lane", parameters)
        except DATABASE_AWAY:
            return
        if row is not None:
            self._marks[key] = Mark(row["lane"], row["ticket"], row["id"])

    async def append(self, lane: Lane, messages: Sequence[Message]) -> None:
        """Returns when they are committed; NowhereToStore if they cannot be."""
        entry = _Entry((lane.tenant, lane.channel), messages)
        self._under_way[entry.key] = self._under_way.get(entry.key, 0) + 1
        self._queue.append(entry)
        self._filled.set()
        try:
            await entry.written
        finally:
            self._under_way[entry.key] -= 1
            if not self._under_way[entry.key]:
                del self._under_way[entry.key]

    # -- writing ----------------------------------------------------------------------------------------------------

    async def _write(self) -> None:
        while True:
            await self._filled.wait()
            while group := self._next_group():
                await self._write_group(group)
            self._filled.clear()

    def _next_group(self) -> list[_Entry]:
        count = events = size = 0
        for entry in self._queue:
            events += len(entry.messages)
            size += entry.size
            if count and (events > GROUP_EVENTS or size > GROUP_BYTES):
                break
            count += 1
        group, self._queue = self._queue[:count], self._queue[count:]
        # Whoever has gone away meanwhile was not answered, and asks again.
        return [entry for entry in group if not entry.written.done()] or (self._next_group() if self._queue else [])

    async def _write_group(self, group: list[_Entry]) -> None:
        try:
            async with asyncio.timeout(WRITE_SECONDS):
                await self._append(group)
        except psycopg.DataError as problem:
            # One of them cannot be stored; it must not take the others with it.
            if len(group) > 1:
                for entry in group:
                    await self._write_group([entry])
            else:
                self._fail(group, problem)
        except (psycopg.Error, *DATABASE_AWAY) as problem:
            self._fail(group, problem)

    async def _append(self, group: list[_Entry]) -> None:
        async with self._pool.connection() as connection, connection.transaction():
            lanes = await self._find_lanes(connection, {entry.key for entry in group})
            known = [entry for entry in group if entry.key in lanes]
            rows = [(lanes[entry.key], each) for entry in known for each in entry.messages]
            columns = {
                "lanes": [lane for lane, _ in rows],
                "ids": [each.id for _, each in rows],
                "types": [each.type for _, each in rows],
                "documents": [each.document.decode() for _, each in rows],
                "traceparents": [each.trace.parent for _, each in rows],
                "tracestates": [each.trace.state or None for _, each in rows],
            }
            await _sql.execute(connection, "spool_append", columns)
            newest = await _sql.fetch_all(connection, "newest_of_lanes", {"lanes": list(lanes.values())})
        marks = {row["lane"]: Mark(row["lane"], row["ticket"], row["id"]) for row in newest}
        self._marks |= {key: marks[lane] for key, lane in lanes.items() if lane in marks}
        for entry in group:
            if not entry.written.done():
                if entry.key in lanes:
                    entry.written.set_result(None)
                else:
                    entry.written.set_exception(TenantConflict(f"channel {entry.key[1]!r} is being deleted"))
        SPOOLED.emit(events=len(rows), lanes=len(lanes))

    @staticmethod
    async def _find_lanes(connection: Connection, keys: set[Key]) -> dict[Key, int]:
        tenants, channels = zip(*keys, strict=True)
        rows = await _sql.fetch_all(connection, "spool_lanes", {"tenants": list(tenants), "channels": list(channels)})
        return {(row["tenant_id"], row["channel"]): row["id"] for row in rows}

    @staticmethod
    def _fail(group: list[_Entry], problem: BaseException) -> None:
        UNWRITABLE.emit(error=problem)
        for entry in group:
            if not entry.written.done():
                entry.written.set_exception(
                    NowhereToStore("neither NATS nor the outbox can be reached at the moment; send it again")
                )

    # -- following the relay ----------------------------------------------------------------------------------------

    async def _follow(self) -> None:
        while True:
            await asyncio.sleep(HANDOVER_STEP if self._gates else FOLLOW_SECONDS)
            if not self._marks:
                continue
            marks = dict(self._marks)
            try:
                async with asyncio.timeout(WRITE_SECONDS):
                    passed = await self._passed(list(marks.values()))
            except (psycopg.Error, *DATABASE_AWAY):
                passed = set()
            for key, mark in marks.items():
                self._advance(key, mark, mark.lane in passed)

    def _advance(self, key: Key, mark: Mark, is_passed: bool) -> None:
        """Release a lane, or bring it closer to that."""
        now, gate = time.monotonic(), self._gates.get(key)
        if is_passed and self._marks[key] == mark and key not in self._under_way:
            del self._marks[key]
            self._open_gate(key)
            self._retry_at.pop(key, None)
            RELEASED.emit(lane="/".join(key))
        elif is_passed and gate is None and now >= self._retry_at.get(key, 0.0):
            # The relay keeps up, but there is always a newer event: those that come now wait for the handover.
            opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._gates[key] = _Gate(opened, now + HANDOVER_SECONDS)
        elif gate is not None and now > gate.deadline:
            self._open_gate(key)
            self._retry_at[key] = now + HANDOVER_PAUSE

    def _open_gate(self, key: Key) -> None:
        gate = self._gates.pop(key, None)
        if gate is not None:
            gate.opened.set_result(None)

    async def _passed(self, marks: list[Mark]) -> set[int]:
        columns = {
            "lanes": [mark.lane for mark in marks],
            "tickets": [mark.ticket for mark in marks],
            "ids": [mark.id for mark in marks],
        }
        async with self._pool.connection() as connection:
            return {row["lane"] for row in await _sql.fetch_all(connection, "lanes_caught_up", columns)}
