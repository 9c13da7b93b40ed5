"""How many tenants a second are provisioned at each tier, with all steps: registry, audit log, account, two streams.

Each figure is the median of its rounds, with as many tenants under way at once as the setting `provisioning_parallel`
allows. `create_to_accepted` is for one tenant alone: from `create` to the acknowledgement of its first event. The
ratios compare with one tenant after the other in the same run.
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from statistics import median
from typing import Final

import nats_bulk
from nats_bulk import Message
from tenantry.bench import Report, Say
from tenantry.bench.own_platform import own_platform, own_settings
from tenantry.config import Settings
from tenantry.nats.connections import connect_bulk
from tenantry.tenants.administration import Administration
from tenantry.tenants.spec import TenantSpec
from tenantry.tenants.tenant import Tier

ACTOR: Final = "bench"


def run(*, quick: bool, say: Say) -> Report:
    rounds, count, alone = (3, 150, 10) if quick else (5, 1000, 30)
    with own_settings() as settings:
        return asyncio.run(_run(settings, rounds, count, alone, say))


async def _run(settings: Settings, rounds: int, count: int, alone: int, say: Say) -> Report:
    rates: defaultdict[str, list[float]] = defaultdict(list)
    async with own_platform(settings) as (_, administration):
        for number in range(rounds):
            say(f"round {number + 1} of {rounds}")
            for tier in Tier:
                names = [f"{tier}-{number}-{each}" for each in range(count)]
                rates[f"{tier}_tenants"].append(await _together(administration, tier, names, settings))
                rates[f"{tier}_tenants_one_by_one"].append(await _one_by_one(administration, tier, number, alone))
                rates[f"{tier}_create_to_accepted"] += await _to_first_event(administration, tier, number, alone)
        say("checking that all are complete")
        await _require_complete(administration, rounds * (count + 2 * alone) * len(Tier))
    figures = {
        f"{name}_{'ms' if 'accepted' in name else 'per_second'}": median(values) for name, values in rates.items()
    }
    ratios = {
        f"{tier}_together_vs_one_by_one": median(rates[f"{tier}_tenants"]) / median(rates[f"{tier}_tenants_one_by_one"])
        for tier in Tier
    }
    return Report(bench="provision", figures=figures, ratios=ratios)


async def _together(administration: Administration, tier: Tier, names: list[str], settings: Settings) -> float:
    room = asyncio.Semaphore(2 * settings.provisioning_parallel)

    async def create(name: str) -> None:
        async with room:
            await administration.put(TenantSpec(id=name, tier=tier), ACTOR)

    started = time.perf_counter()
    await asyncio.gather(*(create(name) for name in names))
    return len(names) / (time.perf_counter() - started)


async def _one_by_one(administration: Administration, tier: Tier, number: int, count: int) -> float:
    started = time.perf_counter()
    for each in range(count):
        await administration.put(TenantSpec(id=f"{tier}-{number}-alone-{each}", tier=tier), ACTOR)
    return count / (time.perf_counter() - started)


async def _to_first_event(administration: Administration, tier: Tier, number: int, count: int) -> list[float]:
    milliseconds = []
    for each in range(count):
        name = f"{tier}-{number}-first-{each}"
        started = time.perf_counter()
        await administration.put(TenantSpec(id=name, tier=tier), ACTOR)
        lane = await administration.lanes.resolve(name, "events")
        with connect_bulk(lane.broker, "bench") as connection:
            nats_bulk.publish(connection, [Message(f"{lane.prefix}.order.created", b"{}", name)]).raise_for_errors()
        milliseconds.append((time.perf_counter() - started) * 1000)
    return milliseconds


async def _require_complete(administration: Administration, expected: int) -> None:
    tenants = [tenant async for tenant in administration.registry.all()]
    if len(tenants) != expected or not all(tenant.is_ready for tenant in tenants):
        raise RuntimeError(f"expected {expected} complete tenants, got {len(tenants)}")
    if drift := await administration.drift.find():
        raise RuntimeError(f"expected the servers to have all that the registry wants, got: {drift[:3]}")
    await administration.audit.verify()
