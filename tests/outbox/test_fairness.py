"""Shares, as the broker itself saw them: the order in which it stored the events of all tenants."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from datetime import UTC, datetime

import nats_bulk
from tenantry.nats.connections import connect_bulk
from tenantry.outbox.relay import IN_AIR
from tests.outbox.carrying import Carrying, until

UNDER_WAY = 500


async def fill(carrying: Carrying, tenant: str, events: int) -> None:
    await carrying.ask(
        """select tenantry.emit_many(jsonb_agg(jsonb_build_object(
               'tenant', %s::text, 'type', 'order.created', 'data', jsonb_build_object('n', n)
           ))) from generate_series(1, %s::integer) n""",
        tenant,
        events,
    )


async def stored_at(carrying: Carrying, tenant: str) -> list[int]:
    """When the broker stored each event of a tenant, in nanoseconds."""
    lane = await carrying.administration.lanes.resolve(tenant, "events")

    def read() -> list[int]:
        with connect_bulk(lane.broker, "test") as connection:
            state = json.loads(connection.request(f"$JS.API.STREAM.INFO.{lane.stream}", b""))["state"]
            if not state["messages"]:
                return []
            batches = nats_bulk.read_range(connection, lane.stream, state["first_seq"], state["last_seq"])
            return [stamp for batch in batches for stamp in batch.timestamps]

    return await asyncio.to_thread(read)


async def served(carrying: Carrying, tenants: list[str], events: int) -> Counter[str]:
    """Of so many events that the broker stored one after the other, how many were whose, once all were under way."""
    stamps = {tenant: await stored_at(carrying, tenant) for tenant in tenants}
    began = max(each[UNDER_WAY] for each in stamps.values())
    after = sorted((stamp, tenant) for tenant, each in stamps.items() for stamp in each if stamp > began)
    assert len(after) >= events
    return Counter(tenant for _, tenant in after[:events])


async def until_published(carrying: Carrying) -> None:
    question = """select from tenantry.outbox_cursors c cross join lateral (
                      select o.id from tenantry.outbox o
                      where o.lane = c.lane and (o.ticket, o.id) > (c.ticket, c.id) order by o.ticket, o.id limit 1
                  ) pending"""
    await until(lambda: carrying.ask(question), lambda rows: not rows)


async def count(carrying: Carrying, tenant: str) -> int:
    lane = await carrying.administration.lanes.resolve(tenant, "events")
    stream = await carrying.administration.backbone.platform.stream(lane.stream)
    assert stream is not None
    return int(stream["state"]["messages"])


async def test_equal_tenants_get_equal_shares(carrying: Carrying) -> None:
    tenants = [f"t{number}" for number in range(20)]
    for tenant in tenants:
        await carrying.tenant(tenant)
        await fill(carrying, tenant, 4000)
    async with carrying.relay():
        await until_published(carrying)
    shares = await served(carrying, tenants, 60_000)
    assert jain([shares[tenant] for tenant in tenants]) >= 0.99


async def test_shares_follow_the_weights(carrying: Carrying) -> None:
    weights = {"one": 1, "two": 2, "four": 4}
    for tenant, weight in weights.items():
        await carrying.tenant(tenant, weight=weight)
        await fill(carrying, tenant, 50_000)
    async with carrying.relay():
        await until_published(carrying)
    # So many that a round more or less, which is a matter of where one begins to count, is little.
    events = 77_000
    shares = await served(carrying, list(weights), events)
    for tenant, weight in weights.items():
        expected = events * weight / 7
        assert abs(shares[tenant] - expected) <= 0.05 * expected, shares


async def test_a_tenant_gains_nothing_by_having_more_channels(carrying: Carrying) -> None:
    await carrying.tenant("plain")
    await carrying.tenant("crafty")
    # So many that what is in the air, which the broker stores in an order of its own, is little of what is counted.
    await fill(carrying, "plain", 60_000)
    for channel in ("events", "properties"):
        await carrying.ask(
            """select tenantry.emit_many(jsonb_agg(jsonb_build_object(
                   'tenant', 'crafty', 'channel', %s::text, 'type', 'order.created'
               ))) from generate_series(1, 20000) n""",
            channel,
        )
    async with carrying.relay():
        await until_published(carrying)
    shares = await served(carrying, ["plain", "crafty"], 36_000)
    # Half of the crafty one's share went to its other channel.
    assert shares["plain"] >= 1.5 * shares["crafty"]


async def test_a_single_event_does_not_wait_for_a_flood(carrying: Carrying) -> None:
    await carrying.tenant("noisy")
    await carrying.tenant("quiet")
    for _ in range(10):
        await fill(carrying, "noisy", 20_000)
    async with carrying.relay():
        await until(lambda: count(carrying, "noisy"), lambda stored: stored > 10_000)
        await carrying.emit("quiet", 1)
        await carrying.until_arrived("quiet", 1)
        await until_published(carrying)
    noisy = await stored_at(carrying, "noisy")
    (quiet,) = await stored_at(carrying, "quiet")
    ((created,),) = await carrying.ask("select created_at from tenantry.outbox_events where tenant_id = 'quiet'")
    emitted = int((created - datetime(1970, 1, 1, tzinfo=UTC)).total_seconds() * 1e9)
    overtaken = sum(emitted < stamp < quiet for stamp in noisy)
    assert len(noisy) == 200_000
    assert overtaken <= 2 * IN_AIR, f"{overtaken} events of the flood went first"


def jain(shares: list[int]) -> float:
    return sum(shares) ** 2 / (len(shares) * sum(share**2 for share in shares))
