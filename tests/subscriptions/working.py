"""What tests of subscriptions do: make tenants, publish, let workers handle, and see what was handled."""

from __future__ import annotations

import asyncio
import json
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Any
from uuid import uuid4

import nats_bulk
from nats_bulk import Message
from tenantry.application import Context, Event, Tenantry
from tenantry.nats.connections import connect_bulk
from tenantry.service import end
from tenantry.subscriptions.worker import Limits, Worker
from tenantry.tenants.administration import Administration
from tenantry.tenants.lanes import Lane
from tenantry.tenants.roster import Roster
from tenantry.tenants.spec import TenantSpec

NO_LIMIT = {"publish_rate": 1_000_000, "publish_burst": 1_000_000, "storage": -1}
PATIENCE = 30.0

Numbers = dict[str, list[int]]


class Working:
    """Tenants with streams of events that are numbered from 1 in each."""

    def __init__(self, administration: Administration) -> None:
        self.administration = administration
        self.roster = Roster(administration.registry, administration.lanes)
        self.published: Numbers = defaultdict(list)

    async def tenant(self, name: str, tier: str = "stream", plan: str = "pro", **overrides: Any) -> str:
        spec = TenantSpec(id=name, tier=tier, plan=plan, overrides=NO_LIMIT | overrides)
        await self.administration.put(spec, "test")
        return name

    async def tenants(self, count: int, tier: str = "stream") -> list[str]:
        names = [f"t{number:03}" for number in range(count)]
        await asyncio.gather(*(self.tenant(name, tier) for name in names))
        return names

    async def publish(
        self,
        tenant: str,
        count: int = 1,
        *,
        type: str = "order.created",
        channel: str = "events",
        lane: Lane | None = None,
        **attributes: Any,
    ) -> None:
        """So many more events of a tenant; their data is their number."""
        first = len(self.published[tenant]) + 1
        numbers = list(range(first, first + count))
        self.published[tenant] += numbers
        await self.publish_documents(
            tenant,
            (document(tenant, number, type, **attributes) for number in numbers),
            type=type,
            channel=channel,
            lane=lane,
        )

    async def publish_documents(
        self,
        tenant: str,
        documents: Iterable[bytes],
        *,
        type: str = "order.created",
        channel: str = "events",
        lane: Lane | None = None,
    ) -> None:
        lane = lane or await self.administration.lanes.resolve(tenant, channel)
        messages = [Message(f"{lane.prefix}.{type}", each, uuid4().hex) for each in documents]

        def send() -> None:
            with connect_bulk(lane.broker, "test") as connection:
                nats_bulk.publish(connection, messages).raise_for_errors()

        await asyncio.to_thread(send)

    def make_worker(self, app: Tenantry, **options: Any) -> Worker:
        lanes = self.administration.lanes
        return Worker(
            app.name,
            app.subscribers.values(),
            broker=lanes.platform,
            roster=self.roster,
            lanes=lanes,
            pool=self.administration.pool,
            **options,
        )

    @asynccontextmanager
    async def worker(self, app: Tenantry, **options: Any) -> AsyncIterator[Worker]:
        """Handles until the block ends, and then hands over."""
        async with self.following():
            worker = self.make_worker(app, **{"limits": Limits(drain_seconds=5), **options})
            await worker.start()
            running = asyncio.ensure_future(worker.run())
            try:
                yield worker
                assert not running.done(), running.exception()
            finally:
                await end([running])
                await worker.stop()

    @asynccontextmanager
    async def following(self) -> AsyncIterator[None]:
        await self.roster.start()
        following = asyncio.create_task(self.roster.run())
        try:
            yield
        finally:
            await end([following])

    async def rows(self, question: str, *parameters: Any) -> list[Any]:
        async with self.administration.pool.connection() as connection:
            return await (await connection.execute(question, parameters)).fetchall()


class Seen:
    """What handlers were given, by tenant, in the order in which they ended."""

    def __init__(self) -> None:
        self.numbers: Numbers = defaultdict(list)
        self.contexts: list[Context] = []

    async def __call__(self, event: Event[int], context: Context) -> None:
        self.add(event, context)

    def add(self, event: Event[int], context: Context) -> None:
        self.numbers[event.tenant].append(event.data)
        self.contexts.append(context)

    @property
    def count(self) -> int:
        return len(self.contexts)


def document(source: str, number: int, type: str = "order.created", **attributes: Any) -> bytes:
    event = {"specversion": "1.0", "id": f"{source}-{number}", "source": "/test", "type": type, "data": number}
    return json.dumps(event | attributes).encode()


async def until(condition: Callable[[], bool | Awaitable[bool]], seconds: float = PATIENCE) -> None:
    async with asyncio.timeout(seconds):
        while True:
            met = condition()
            if await met if isinstance(met, Awaitable) else met:
                return
            await asyncio.sleep(0.02)
