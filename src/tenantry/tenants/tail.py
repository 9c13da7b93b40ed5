"""Follows what tenants publish, wherever their lanes are and wherever they move."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from datetime import UTC, datetime
from typing import Final, NamedTuple

import psycopg
from nats.aio.client import Client
from nats.js.errors import NotFoundError
from psycopg_pool import PoolTimeout

from tenantry.errors import BrokerUnreachable, TenantryError
from tenantry.event import EVERY_TYPE, Subject
from tenantry.nats.connections import connect
from tenantry.nats.following import Start, Stored, follow, next_sequence, sequence_of_last
from tenantry.service import end
from tenantry.tenants.lanes import Lane
from tenantry.tenants.roster import Roster

LOOK_SECONDS: Final = 0.5
WAITING: Final = 1000


class Wanted(NamedTuple):
    """Which events are followed."""

    tenants: frozenset[str] = frozenset()
    """Empty: all."""
    channel: str | None = None
    types: str = EVERY_TYPE
    """With wildcards: `order.*` is any one word more, `order.>` any number of them."""
    start: Start | None = None
    """None: what comes from now on."""
    last: int | None = None
    """Begin with so many of each stream."""


class Published(NamedTuple):
    tenant: str
    channel: str
    stored: Stored


class _Source(NamedTuple):
    """Part of a stream."""

    account: str
    stream: str
    subjects: str


class Tail:
    """Events as they come, of all streams together; of each lane they come in its order."""

    def __init__(self, roster: Roster, wanted: Wanted, connections: AsyncExitStack) -> None:
        self._roster = roster
        self._wanted = wanted
        self._connections = connections
        self._began = datetime.now(UTC)
        self._clients: dict[str, Client] = {}
        self._following: dict[_Source, asyncio.Task[None]] = {}
        self._arrived: asyncio.Queue[Published | TenantryError] = asyncio.Queue(WAITING)
        self._seen: dict[tuple[object, str], int] = {}
        """The last sequence of each lane, by the tenant's uid: after a move it goes on in another stream."""

    @classmethod
    @asynccontextmanager
    async def open(cls, roster: Roster, wanted: Wanted) -> AsyncIterator[Tail]:
        """What is published from here on is not missed; lanes that are new later are followed, too."""
        async with AsyncExitStack() as connections:
            tail = cls(roster, wanted, connections)
            await roster.refresh()
            await tail._look(is_first=True)
            looking = asyncio.create_task(tail._keep_looking())
            try:
                yield tail
            finally:
                await end([looking, *tail._following.values()])

    @property
    def streams(self) -> int:
        return len({(source.account, source.stream) for source in self._following})

    def __aiter__(self) -> Tail:
        return self

    async def __anext__(self) -> Published:
        arrived = await self._arrived.get()
        if isinstance(arrived, TenantryError):
            raise arrived
        return arrived

    async def _keep_looking(self) -> None:
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            try:
                await self._roster.refresh()
                await self._look(is_first=False)
            except (psycopg.Error, PoolTimeout, BrokerUnreachable):
                # What is followed goes on; the rest comes when they are back.
                continue
            except TenantryError as problem:
                await self._arrived.put(problem)

    async def _look(self, *, is_first: bool) -> None:
        """Follow whatever is not followed yet."""
        for source, lane in self._sources().items():
            if source in self._following and not self._following[source].done():
                continue
            if source.account not in self._clients:
                opened = connect(lane.broker, "tenantry-tail")
                self._clients[source.account] = await self._connections.enter_async_context(opened)
            client = self._clients[source.account]
            start = await self._first(client, source) if is_first else self._later
            self._following[source] = asyncio.create_task(self._follow(client, source, start))

    def _sources(self) -> dict[_Source, Lane]:
        """What is to be followed, with a lane that is in it."""
        found: dict[_Source, Lane] = {}
        wanted = self._wanted
        for tenant in self._roster:
            if wanted.tenants and tenant.id not in wanted.tenants:
                continue
            for channel in tenant.channels:
                lane = self._roster.lane(tenant.id, channel.name)
                if lane and not channel.removing and wanted.channel in (None, channel.name):
                    found.setdefault(_Source(lane.account, lane.stream, self._subjects(lane)), lane)
        return found

    def _subjects(self, lane: Lane) -> str:
        if not lane.is_shared or self._wanted.tenants:
            return f"{lane.prefix}.{self._wanted.types}"
        # One consumer for all who share the stream, and for those who are going to.
        above = lane.prefix.removesuffix(f"{lane.tenant}.{lane.channel}")
        return f"{above}*.{self._wanted.channel or '*'}.{self._wanted.types}"

    @property
    def _later(self) -> Start:
        """Where to begin in a stream that comes later. If a lane has moved there, it has what came before, too."""
        wanted = self._wanted.start
        return Start(time=wanted.time if wanted and wanted.time else self._began)

    async def _first(self, client: Client, source: _Source) -> Start:
        try:
            if self._wanted.last:
                return Start(await sequence_of_last(client, source.stream, source.subjects, self._wanted.last))
            return self._wanted.start or Start(await next_sequence(client, source.stream))
        except NotFoundError:
            return self._later

    async def _follow(self, client: Client, source: _Source, start: Start) -> None:
        try:
            async with aclosing(follow(client, source.stream, source.subjects, start)) as messages:
                async for stored in messages:
                    subject = Subject.parse(stored.subject)
                    if self._is_new(subject, stored.sequence):
                        await self._arrived.put(Published(subject.tenant, subject.channel, stored))
        except TenantryError as problem:
            await self._arrived.put(problem)

    def _is_new(self, subject: Subject, sequence: int) -> bool:
        tenant = self._roster.find(subject.tenant)
        lane = (tenant.uid if tenant else subject.tenant, subject.channel)
        if sequence <= self._seen.get(lane, 0):
            return False
        self._seen[lane] = sequence
        return True
