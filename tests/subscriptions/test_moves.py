"""A tenant that moves to another tier while its events are published and handled."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from typing import Any

import pytest

import nats_bulk
from nats_bulk import BulkError, Message
from tenantry.application import Context, Event, Tenantry
from tenantry.errors import TenantryError
from tenantry.nats.connections import connect_bulk
from tenantry.tenants.tenant import Tier
from tests.subscriptions.working import Seen, Working, document, until


async def publish_through(working: Working, tenant: str, stop: asyncio.Event) -> int:
    """One after the other, each until it is stored, wherever the lane is; how many."""
    number = 0

    def send(message: Message, broker: Any) -> None:
        with connect_bulk(broker, "test", timeout=1.0) as connection:
            nats_bulk.publish(connection, [message]).raise_for_errors()

    while not stop.is_set():
        number += 1
        while True:
            try:
                lane = await working.administration.lanes.resolve(tenant, "events")
                id = lane.message_id(f"{tenant}-{number}")
                message = Message(f"{lane.prefix}.order.created", document(tenant, number), id)
                await asyncio.to_thread(send, message, lane.broker)
                break
            except (BulkError, TenantryError):
                await asyncio.sleep(0.01)
    return number


@pytest.mark.parametrize("order", ["fifo", "parallel"])
async def test_subscriptions_carry_on_through_moves_without_losing_repeating_or_reordering(
    working: Working, order: Any
) -> None:
    await working.tenant("acme", "pooled")
    await working.tenant("globex", "pooled")
    await working.publish("globex", 50)
    app, seen, slow = Tenantry("shop"), Seen(), Seen()

    @app.subscriber("quick", order=order)
    async def handle(event: Event[int], context: Context) -> None:
        seen.add(event, context)

    @app.subscriber("behind", order=order, max_in_flight=3)
    async def lag_behind(event: Event[int], context: Context) -> None:
        await asyncio.sleep(0.01)
        slow.add(event, context)

    async with working.worker(app):
        stop = asyncio.Event()
        publishing = asyncio.ensure_future(publish_through(working, "acme", stop))
        for tier in (Tier.STREAM, Tier.ACCOUNT):
            before = seen.count
            await until(lambda before=before: seen.count > before + 60)  # type: ignore[misc]
            await working.administration.move("acme", tier, "test")
        before = seen.count
        await until(lambda: seen.count > before + 60)
        stop.set()
        count = await publishing
        await until(lambda: len(seen.numbers["acme"]) >= count and len(slow.numbers["acme"]) >= count)
        await until(lambda: len(seen.numbers["globex"]) == 50)
    for name, each in (("quick", seen.numbers["acme"]), ("behind", slow.numbers["acme"])):
        numbers = each if order == "fifo" else sorted(each)
        odd = [(one, other) for one, other in pairwise(numbers) if other != one + 1]
        assert (name, odd, len(numbers)) == (name, [], count)
