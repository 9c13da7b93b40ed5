"""Sample tenants with load: three quiet ones, one at each tier, and a noisy one with an account of its own.

Each emits in PostgreSQL transactions, as an application would; the relay carries that to its stream, from which it is
read back. What to look at: the noisy one's thousands of events a second leave the others' as quick as before.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from statistics import quantiles
from typing import Any, Final, TypeVar

import psycopg

import nats_bulk
from tenantry import event
from tenantry.errors import BrokerError, ProvisioningFailed, TenantError
from tenantry.nats.connections import connect_bulk
from tenantry.outbox import emit_many
from tenantry.service import Held, side_by_side
from tenantry.tenants.administration import Administration
from tenantry.tenants.lanes import Lane
from tenantry.tenants.spec import TenantSpec
from tenantry.tenants.tenant import Status, Tier

CHANNEL: Final = "events"
TYPES: Final = ("order.created", "order.paid", "order.shipped")
TICK_SECONDS: Final = 0.1
LOOK_TICKS: Final = 10
LAST_SECONDS: Final = 3.0
# As little as a demo needs, so that it may run for days.
LIMITS: Final = {"retention": "1h", "storage": "256MiB", "publish_rate": 10_000}

Result = TypeVar("Result")


@dataclass(slots=True)
class SampleTenant:
    """One tenant of the demo and what has become of its events."""

    name: str
    rate: int
    tier: Tier
    lane: Lane | None = None
    connection: nats_bulk.Connection | None = None
    emitted: int = 0
    read: int = 0
    next_to_read: int = 1
    seconds_to_stream: deque[float] = field(default_factory=lambda: deque(maxlen=200))

    @property
    def lag(self) -> int:
        return max(0, self.emitted - self.read)

    def summary(self) -> dict[str, Any]:
        p50, p99 = _percentiles(self.seconds_to_stream)
        return {
            "tier": self.tier,
            "emitted": self.emitted,
            "read": self.read,
            "lag": self.lag,
            "to_stream_ms": {"p50": p50, "p99": p99},
        }


class Demo:
    """Provisions the sample tenants, emits for them, and reads back what they emitted."""

    name = "demo"

    def __init__(self, tenants: Held[Administration]) -> None:
        self._administration = tenants
        self._numbers = itertools.count(1)
        self.tenants = [
            SampleTenant("acme", 20, Tier.ACCOUNT),
            SampleTenant("globex", 20, Tier.STREAM),
            SampleTenant("initech", 20, Tier.POOLED),
            SampleTenant("noisy", 5000, Tier.ACCOUNT),
        ]

    async def start(self) -> None:
        administration = self._administration.value
        for tenant in self.tenants:
            if not administration.lanes.has_accounts:
                tenant.tier = min(tenant.tier, Tier.STREAM, key=list(Tier).index)
            await self._provision(administration, tenant)

    async def run(self) -> None:
        await side_by_side(*(self._drive(tenant) for tenant in self.tenants))

    async def stop(self) -> None:
        deadline = time.monotonic() + LAST_SECONDS
        for tenant in self.tenants:
            if tenant.connection and tenant.lane:
                # What was emitted last has not been read yet, if the broker is still there to read from.
                tenant.connection.reconnect_for = 0.0
                with suppress(nats_bulk.BulkError):
                    await _in_thread(partial(self._read, tenant))
                    while tenant.lag and time.monotonic() < deadline:
                        await asyncio.sleep(TICK_SECONDS)
                        await _in_thread(partial(self._read, tenant))
        self.kill()

    def kill(self) -> None:
        for tenant in self.tenants:
            if tenant.connection:
                # Also makes a publish that is under way give up instead of trying again.
                tenant.connection.close()

    async def _provision(self, administration: Administration, tenant: SampleTenant) -> None:
        existing = await administration.registry.find(tenant.name)
        # Somebody may have moved it, or suspended it to see what happens.
        tenant.tier = existing.tier if existing else tenant.tier
        created, _ = await administration.put(TenantSpec(id=tenant.name, tier=tenant.tier, overrides=LIMITS), "demo")
        if created.problem:
            raise ProvisioningFailed(f"the demo's tenant {tenant.name} is not complete: {created.problem}")
        if created.status == Status.SUSPENDED:
            await administration.resume(tenant.name, "demo")
        await self._find_lane(administration, tenant)

    async def _look_after(self, tenant: SampleTenant) -> None:
        """Somebody may have moved the tenant, or suspended or deleted it, to see what happens."""
        try:
            lane = await self._administration.value.lanes.resolve(tenant.name, CHANNEL)
        except TenantError:
            tenant.lane = None
        else:
            if tenant.lane is None or (lane.stream, lane.account) != (tenant.lane.stream, tenant.lane.account):
                await self._find_lane(self._administration.value, tenant)

    async def _find_lane(self, administration: Administration, tenant: SampleTenant) -> None:
        """Connect to wherever the tenant's events go now; what is there already is not ours to read."""
        with suppress(TenantError, BrokerError):
            lane = await administration.lanes.resolve(tenant.name, CHANNEL)
            async with administration.backbone.jetstream(lane.broker) as jetstream:
                stream = await jetstream.stream(lane.stream)
            if tenant.connection:
                tenant.connection.close()
            tenant.connection = connect_bulk(lane.broker, f"demo-{tenant.name}", reconnect_for=2.0)
            tenant.tier = (await administration.registry.get(tenant.name)).tier
            tenant.lane = lane
            tenant.next_to_read = (stream["state"]["last_seq"] if stream else 0) + 1

    async def _drive(self, tenant: SampleTenant) -> None:
        for tick in itertools.count():
            started = time.monotonic()
            if tick % LOOK_TICKS == 0:
                await self._look_after(tenant)
            with suppress(nats_bulk.BulkError, TenantError, psycopg.OperationalError):
                # What fails now does so because the tenant is on its way elsewhere; it is looked for again soon.
                if tenant.lane:
                    await self._emit(tenant)
                    await _in_thread(partial(self._read, tenant))
            await asyncio.sleep(max(0.0, started + TICK_SECONDS - time.monotonic()))

    async def _emit(self, tenant: SampleTenant) -> None:
        events = [self._event(tenant) for _ in range(max(1, round(tenant.rate * TICK_SECONDS)))]
        async with self._administration.value.pool.connection() as connection, connection.transaction():
            # Here an application would also write what the events tell of.
            await emit_many(connection, events)
        tenant.emitted += len(events)

    def _event(self, tenant: SampleTenant) -> dict[str, Any]:
        number = next(self._numbers)
        return {
            "tenant": tenant.name,
            "channel": CHANNEL,
            "type": TYPES[number % len(TYPES)],
            "source": "/demo",
            "data": {"order": number, "total": number % 500},
        }

    def _read(self, tenant: SampleTenant) -> None:
        assert tenant.connection is not None
        assert tenant.lane is not None
        prefix = f"{tenant.lane.prefix}."
        answer = tenant.connection.request(f"$JS.API.STREAM.INFO.{tenant.lane.stream}", b"")
        newest = int(json.loads(answer)["state"]["last_seq"])
        for batch in nats_bulk.read_range(tenant.connection, tenant.lane.stream, tenant.next_to_read, newest):
            # A shared stream has others' events in between.
            own = [place for place, subject in enumerate(batch.subjects) if subject.startswith(prefix)]
            tenant.read += len(own)
            if own:
                emitted = event.decode(batch.payloads[own[-1]]).time
                assert emitted is not None
                tenant.seconds_to_stream.append(batch.timestamps[own[-1]] / 1e9 - emitted.timestamp())
        tenant.next_to_read = newest + 1


async def _in_thread(work: Callable[[], Result]) -> Result:
    """Run blocking work; when cancelled, let it finish first, for it uses a connection that is about to be closed."""
    working = asyncio.ensure_future(asyncio.to_thread(work))
    try:
        return await asyncio.shield(working)
    except asyncio.CancelledError:
        await asyncio.gather(working, return_exceptions=True)
        raise


def _percentiles(seconds: deque[float]) -> tuple[float, float]:
    if len(seconds) < 2:
        return 0.0, 0.0
    cuts = quantiles(seconds, n=100)
    return round(cuts[49] * 1000, 2), round(cuts[98] * 1000, 2)
