"""The way of an event that came over HTTP: its tenant and lane, checked, admitted, and stored before it is answered.

read ──► check ──► admit ──► stream, acknowledged          ──► answer
                        └──► outbox, committed (the stream cannot be reached, or has not caught up)
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Final

import msgspec
import psycopg

from nats_bulk import PublishError
from tenantry.errors import EventInvalid, EventTooLarge, NowhereToStore, StorageFull, TenantNotFound
from tenantry.ingest.admission import Rates, Room, Stay
from tenantry.ingest.publisher import ANSWER_SECONDS, Outcome, Publisher
from tenantry.ingest.publishers import Publishers
from tenantry.ingest.reading import Message, Reader, read_batch
from tenantry.ingest.schemas import Schemas
from tenantry.ingest.spool import DATABASE_AWAY, Spool
from tenantry.ingest.tracing import Trace
from tenantry.postgres.pool import Pool
from tenantry.service import end
from tenantry.telemetry import signal
from tenantry.tenants.audit import AuditLog
from tenantry.tenants.lanes import Lane
from tenantry.tenants.roster import Roster
from tenantry.tenants.tenant import Tenant

TAKEN = signal(
    "ingest.taken",
    "Events were taken in over HTTP and stored.",
    "tenant",
    "channel",
    "events",
    "bytes",
    "duplicates",
    "spooled",
    level="debug",
)

MOST_IN_BATCH: Final = 1000
LARGEST_BATCH: Final = 8 << 20
AT_ONCE: Final = 100
"""So many events are read before others have their turn."""

_TOO_LARGE: Final = 10054
# What a stream, or the account it is in, answers when it is full and may not drop old events.
_FULL: Final = (10002, 10023, 10047, 10077)


class Receipt(msgspec.Struct):
    """What became of the events of a request."""

    accepted: int
    duplicates: int
    spooled: int
    ids: list[str]


class Intake:
    def __init__(
        self,
        roster: Roster,
        publishers: Publishers,
        spool: Spool,
        schemas: Schemas,
    ) -> None:
        self.room = Room()
        self.schemas = schemas
        self.publishers = publishers
        self.spool = spool
        self._roster = roster
        self._rates = Rates()
        self._looked: dict[tuple[str, str], tuple[Publisher, int]] = {}
        self._looking: dict[tuple[str, str], asyncio.Task[None]] = {}
        self._refreshing = asyncio.Lock()
        self._next_refresh: asyncio.Task[None] | None = None

    async def find(self, tenant: str, channel: str) -> tuple[Tenant, Lane]:
        """The tenant, if it may send now, and where its channel is."""
        found, lane = self._roster.find(tenant), self._roster.lane(tenant, channel)
        if found is None or lane is None:
            # It may be newer than what is in memory.
            await self._refresh()
            found, lane = self._roster.find(tenant), self._roster.lane(tenant, channel)
        if found is None:
            raise TenantNotFound(f"there is no tenant {tenant!r}")
        found.require_active()
        if lane is None:
            names = ", ".join(each.name for each in found.channels if not each.removing)
            raise TenantNotFound(f"tenant {tenant} has no channel {channel[:40]!r}, only {names}")
        return found, lane

    async def take(self, tenant: Tenant, lane: Lane, document: bytes, trace: Trace | None, stay: Stay) -> Receipt:
        """One event. Whoever gets a receipt need not send it again."""
        reader = Reader(lane, tenant.limits.payload, trace)
        return await self._take(tenant, lane, [self._read(reader, document)], stay)

    async def take_batch(self, tenant: Tenant, lane: Lane, body: bytes, trace: Trace | None, stay: Stay) -> Receipt:
        """Many events: all are valid, or none is stored."""
        documents = read_batch(body)
        if not 1 <= len(documents) <= MOST_IN_BATCH:
            raise EventInvalid("", f"expected a batch of 1 to {MOST_IN_BATCH:,} events, got: {len(documents):,}")
        reader = Reader(lane, tenant.limits.payload, trace)
        messages = []
        for index, document in enumerate(documents):
            try:
                messages.append(self._read(reader, document))
            except (EventInvalid, EventTooLarge) as problem:
                problem.index = index
                raise
            if index % AT_ONCE == AT_ONCE - 1:
                await asyncio.sleep(0)
        return await self._take(tenant, lane, messages, stay)

    def _read(self, reader: Reader, document: bytes) -> Message:
        event, message = reader.read(document)
        validator = self.schemas.validator(reader.lane.tenant, event.type)
        if validator is not None:
            validator.check(event)
        return message

    async def _take(self, tenant: Tenant, lane: Lane, messages: list[Message], stay: Stay) -> Receipt:
        stay.take_events(len(messages))
        await self._rates.admit(tenant, len(messages))
        duplicates, spooled = await self._store(lane, messages)
        TAKEN.emit(
            tenant=lane.tenant,
            channel=lane.channel,
            events=len(messages),
            bytes=sum([each.size for each in messages]),
            duplicates=duplicates,
            spooled=spooled,
        )
        return Receipt(len(messages), duplicates, spooled, [each.id for each in messages])

    # -- storing ----------------------------------------------------------------------------------------------------

    async def _store(self, lane: Lane, messages: Sequence[Message], *, may_look_again: bool = True) -> tuple[int, int]:
        """How many the stream had already, and how many were spooled."""
        publisher = self.publishers.of(lane.broker)
        if await self.spool.holds(lane) or not await publisher.is_linked():
            await self.spool.append(lane, messages)
            return 0, len(messages)
        if self._looked.get((lane.tenant, lane.channel)) != (publisher, publisher.generation):
            await self._look(lane, publisher)
            return await self._store(lane, messages, may_look_again=may_look_again)
        outcome = await publisher.publish(messages)
        if not outcome.errors:
            return outcome.duplicates, 0
        return await self._store_rest(lane, messages, outcome, may_look_again)

    async def _look(self, lane: Lane, publisher: Publisher) -> None:
        """What was spooled while the connection was away, here or by another process, comes first."""
        key, generation = (lane.tenant, lane.channel), publisher.generation
        if key not in self._looking:
            task = self._looking[key] = asyncio.create_task(self.spool.look(lane))
            task.add_done_callback(lambda _: self._looking.pop(key))
        await asyncio.shield(self._looking[key])
        self._looked[key] = publisher, generation

    async def _store_rest(
        self, lane: Lane, messages: Sequence[Message], outcome: Outcome, may_look_again: bool
    ) -> tuple[int, int]:
        """What the stream did not take: to where the lane is now, to the outbox, or back with the reason."""
        rest = [messages[position] for position in sorted(outcome.errors)]
        moved = await self._moved(lane) if may_look_again else None
        if moved is not None:
            duplicates, spooled = await self._store(moved, rest, may_look_again=False)
            return outcome.duplicates + duplicates, spooled
        for position, error in sorted(outcome.errors.items()):
            _raise_if_final(lane, position, error)
        await self.spool.append(lane, rest)
        return outcome.duplicates, len(rest)

    async def _moved(self, lane: Lane) -> Lane | None:
        """Where the lane is, if that is no longer where it was."""
        await self._refresh()
        now = self._roster.lane(lane.tenant, lane.channel)
        return now if now is not None and now != lane else None

    async def _refresh(self) -> None:
        """Read the roster anew, once for all who ask at the same time; what it has is kept if that fails."""
        if self._next_refresh is None:
            self._next_refresh = asyncio.create_task(self._refresh_next())
        await asyncio.shield(self._next_refresh)

    async def _refresh_next(self) -> None:
        async with self._refreshing:
            # Whoever asks from now on may know of something newer.
            self._next_refresh = None
            try:
                async with asyncio.timeout(ANSWER_SECONDS):
                    await self._roster.refresh()
            except (psycopg.Error, *DATABASE_AWAY):
                return


def _raise_if_final(lane: Lane, position: int, error: PublishError) -> None:
    """What the outbox would not get past either."""
    if error.err_code == _TOO_LARGE:
        raise EventTooLarge(f"the stream takes no event of this size: {error.description}", position)
    if error.err_code in _FULL:
        raise StorageFull(
            f"channel {lane.channel!r} of tenant {lane.tenant} is full and keeps what it has ({error.description}); "
            "have `storage` of its plan raised, or wait until old events expire"
        )
    if error.certain and 400 <= error.code < 500 and error.code != 403:
        raise NowhereToStore(f"the stream of channel {lane.channel!r} did not take the event: {error.description}")


@asynccontextmanager
async def open_intake(
    roster: Roster, pool: Pool, outbox: Pool, audit: AuditLog, *, publishers: Publishers, keep_roster: bool = True
) -> AsyncIterator[Intake]:
    """All that ingest needs, running. `outbox` is the database that holds the outbox.

    With `keep_roster` the roster is kept up to date here; without it, somebody else does that.
    """
    schemas, spool = Schemas(pool, audit), Spool(outbox)
    await schemas.start()
    following: list[asyncio.Task[None]] = []
    try:
        if keep_roster:
            await roster.start()
            following.append(asyncio.create_task(roster.run(), name="roster"))
        publishers.start()
        spool.start()
        yield Intake(roster, publishers, spool, schemas)
    finally:
        await end(following)
        await publishers.stop()
        await spool.stop()
        await schemas.stop()
