"""What a tenant has of a relay that others keep busy.

`flooded_vs_idle` is how long a single event takes from `emit` to its stream while another tenant has 200,000 events
pending, beside how long it takes on an idle relay. `jain` is Jain's index over twenty equal tenants that all have more
than the relay can carry: 1 is perfectly equal. `worst_share` is how far, with the weights 1, 2 and 4, a share is from
what its weight says. All as the broker stored the events, by its own clock and order.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from statistics import median
from typing import Final

import nats_bulk
from tenantry.bench import Report, Say
from tenantry.bench.own_platform import own_platform, own_settings
from tenantry.config import Settings
from tenantry.nats.connections import connect_bulk
from tenantry.outbox.service import RelayService
from tenantry.postgres.queries import SqlFolder
from tenantry.tenants.administration import Administration
from tenantry.tenants.roster import Roster
from tenantry.tenants.spec import TenantSpec

ACTOR: Final = "bench"
FLOOD: Final = 200_000
EQUALS: Final = 20
WEIGHTS: Final = (1, 2, 4)
CHUNK: Final = 10_000
UNDER_WAY: Final = 500
"""After so many events of each, all are being served."""
NO_LIMIT: Final = {"publish_rate": 100_000_000, "publish_burst": 100_000_000, "storage": -1}

_sql = SqlFolder("tenantry.bench")


def run(*, quick: bool, say: Say) -> Report:
    singles, each = (40, 4000) if quick else (200, 20_000)
    with own_settings() as settings:
        return asyncio.run(_run(settings, singles, each, say))


async def _run(settings: Settings, singles: int, each: int, say: Say) -> Report:
    async with own_platform(settings) as (platform, administration):
        bench = _Bench(administration, platform.database_url, settings)
        say("single events, on an idle relay and beside a flood")
        idle, flooded = await bench.single_events(singles)
        say("twenty equal tenants")
        equal = await bench.shares({f"equal-{number}": 1 for number in range(EQUALS)}, each)
        say("three tenants of different weight")
        weighted = await bench.shares({f"weight-{weight}": weight for weight in WEIGHTS}, 6 * each)
    total = sum(weighted.values())
    errors = [abs(weighted[f"weight-{weight}"] / total / (weight / sum(WEIGHTS)) - 1) for weight in WEIGHTS]
    return Report(
        bench="fairness",
        figures={"single_event_idle_ms": idle, "single_event_flooded_ms": flooded},
        ratios={
            "flooded_vs_idle": flooded / idle,
            "jain": _jain(list(equal.values())),
            "worst_share": 1 + max(errors),
        },
    )


class _Bench:
    def __init__(self, administration: Administration, url: str, settings: Settings) -> None:
        self._administration = administration
        self._url = url
        self._settings = settings
        self._roster = Roster(administration.registry, administration.lanes)

    async def single_events(self, count: int) -> tuple[float, float]:
        """Milliseconds from emit to stream: alone, and while another tenant floods."""
        await self._make({"quiet": 1, "noisy": 1})
        async with self._relay():
            idle = [await self._single() for _ in range(count)]
        flooded: list[float] = []
        while len(flooded) < count // 2:
            await self._fill("noisy", FLOOD)
            async with self._relay():
                await self._single()
                before = len(flooded)
                while await self._is_pending("noisy"):
                    flooded.append(await self._single())
                if len(flooded) == before:
                    raise RuntimeError("expected the flood to last for some events")
                await self._until_published()
        return median(idle), median(flooded)

    async def _single(self) -> float:
        lane = await self._administration.lanes.resolve("quiet", "events")
        before = await self._administration.backbone.platform.last_sequence(lane.stream, lane.subjects)
        started = time.perf_counter()
        await self._fill("quiet", 1)
        while await self._administration.backbone.platform.last_sequence(lane.stream, lane.subjects) == before:
            await asyncio.sleep(0.0005)
        milliseconds = (time.perf_counter() - started) * 1000
        # Not in step with the relay's looking around.
        await asyncio.sleep(0.03 + 0.02 * (before % 7) / 7)
        return milliseconds

    async def shares(self, weights: dict[str, int], each: int) -> Counter[str]:
        """Of what the broker stored while all had something pending, how much was whose."""
        await self._make(weights)
        for tenant in weights:
            await self._fill(tenant, each)
        async with self._relay():
            await self._until_published()
        stamps = {tenant: await self._stored_at(tenant) for tenant in weights}
        began, ended = max(each[UNDER_WAY] for each in stamps.values()), min(each[-1] for each in stamps.values())
        return Counter({tenant: sum(began < stamp < ended for stamp in each) for tenant, each in stamps.items()})

    async def _make(self, weights: dict[str, int]) -> None:
        for tenant, weight in weights.items():
            await self._administration.put(TenantSpec(id=tenant, overrides=NO_LIMIT | {"weight": weight}), ACTOR)

    async def _fill(self, tenant: str, count: int) -> None:
        async with self._administration.pool.connection() as connection:
            for first in range(0, count, CHUNK):
                events = min(CHUNK, count - first)
                await _sql.execute(connection, "fill_tenant", {"tenant": tenant, "count": events})

    async def _is_pending(self, tenant: str = "") -> bool:
        async with self._administration.pool.connection() as connection:
            row = await _sql.fetch_one(connection, "pending", {"tenant": tenant})
        return bool(row and row["lanes"])

    async def _until_published(self) -> None:
        while await self._is_pending():
            await asyncio.sleep(0.05)

    async def _stored_at(self, tenant: str) -> Sequence[int]:
        lane = await self._administration.lanes.resolve(tenant, "events")
        last = await self._administration.backbone.platform.last_sequence(lane.stream, lane.subjects)

        def read() -> list[int]:
            with connect_bulk(lane.broker, "bench") as connection:
                return [
                    stamp
                    for batch in nats_bulk.read_range(connection, lane.stream, 1, last)
                    for stamp in batch.timestamps
                ]

        return await asyncio.to_thread(read)

    @asynccontextmanager
    async def _relay(self) -> AsyncIterator[None]:
        await self._roster.refresh()
        relay = RelayService(self._url, self._roster, self._administration.lanes, self._settings)
        await relay.start()
        try:
            yield
        finally:
            await relay.stop()


def _jain(shares: Sequence[int]) -> float:
    return sum(shares) ** 2 / (len(shares) * sum(share**2 for share in shares))
