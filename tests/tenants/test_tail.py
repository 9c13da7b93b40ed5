"""Following tenants' events inside a process; tests/cli/test_tail.py has what people see of it."""

from __future__ import annotations

import asyncio
from itertools import count

from tenantry.nats.connections import connect
from tenantry.service import end
from tenantry.tenants.administration import Administration
from tenantry.tenants.roster import Roster
from tenantry.tenants.spec import TenantSpec
from tenantry.tenants.tail import Tail, Wanted

TIMES = 20


async def test_it_ends_when_nobody_wants_more_though_events_keep_coming(administration: Administration) -> None:
    """An event that arrives in the moment of a cancellation can make asyncio forget the cancellation."""
    await administration.put(TenantSpec(id="acme", tier="stream"), "test")
    lane = await administration.lanes.resolve("acme", "events")
    roster = Roster(administration.registry, administration.lanes)

    async def keep_publishing() -> None:
        async with connect(lane.broker, "test") as client:
            for number in count():
                await client.publish(f"{lane.prefix}.order.created", b"%d" % number)
                await asyncio.sleep(0.001)

    publishing = asyncio.create_task(keep_publishing())
    try:
        for _ in range(TIMES):
            async with asyncio.timeout(60), Tail.open(roster, Wanted()) as events:
                async for _ in events:
                    break
    finally:
        await end([publishing])
