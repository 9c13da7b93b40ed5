"""Subscribers and what they are given, through a real broker."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import msgspec
import pytest
from pydantic import BaseModel

from tenantry.application import Context, Event, Tenantry
from tests.subscriptions.working import Seen, Working, document, until


@pytest.mark.parametrize("tier", ["pooled", "stream", "account"])
async def test_a_subscriber_gets_each_tenants_events_in_their_order(working: Working, tier: str) -> None:
    names = [await working.tenant(name, tier) for name in ("acme", "globex", "initech")]
    for name in names:
        await working.publish(name, 200)
    app, seen = Tenantry("shop"), Seen()
    app.subscriber("orders", types=["order.*"])(seen)
    async with working.worker(app):
        await until(lambda: seen.count >= 600)
        await working.publish("acme", 100)
        await until(lambda: seen.count >= 700)
    assert seen.numbers == working.published


async def test_parallel_events_are_all_handled_and_several_at_a_time(working: Working) -> None:
    await working.tenant("acme")
    await working.publish("acme", 300)
    app, seen, running, most = Tenantry("shop"), Seen(), 0, 0

    @app.subscriber("orders", order="parallel", max_in_flight=20)
    async def handle(event: Event[int], context: Context) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.001)
        running -= 1
        seen.add(event, context)

    async with working.worker(app):
        await until(lambda: seen.count >= 300)
    assert sorted(seen.numbers["acme"]) == working.published["acme"]
    assert 1 < most <= 20


async def test_a_plain_function_is_run_in_a_thread(working: Working) -> None:
    await working.tenant("acme")
    await working.publish("acme", 20)
    app, seen = Tenantry("shop"), Seen()
    app.subscriber("orders")(lambda event, context: seen.add(event, context))
    async with working.worker(app):
        await until(lambda: seen.count >= 20)
    assert seen.numbers == working.published


async def test_what_failed_is_tried_again_before_the_next(working: Working) -> None:
    await working.tenant("acme")
    await working.publish("acme", 30)
    app, seen, tries = Tenantry("shop"), Seen(), Counter[int]()

    @app.subscriber("orders", retries=3, backoff=0.05)
    async def handle(event: Event[int], context: Context) -> None:
        tries[event.data] += 1
        assert context.attempt == tries[event.data]
        if event.data % 10 == 0 and tries[event.data] < 3:
            raise RuntimeError("not yet")
        seen.add(event, context)

    async with working.worker(app):
        await until(lambda: seen.count >= 30)
    assert seen.numbers == working.published
    assert tries[10] == tries[20] == tries[30] == 3


async def test_after_the_last_retry_an_event_is_a_dead_letter_and_the_rest_goes_on(working: Working) -> None:
    await working.tenant("acme")
    await working.publish("acme", 5, traceparent="00-" + "1" * 32 + "-" + "2" * 16 + "-01")
    await working.publish_documents("acme", [b"no event at all"])
    app, seen = Tenantry("shop"), Seen()

    @app.subscriber("orders", retries=2, backoff=0.02)
    async def handle(event: Event[int], context: Context) -> None:
        if event.data == 3:
            raise ValueError("three is too much")
        seen.add(event, context)

    async with working.worker(app):
        await until(lambda: seen.count >= 4)

        async def buried() -> bool:
            return len(await working.rows("select 1 from tenantry.dead_letters")) == 2

        await until(buried)
    assert seen.numbers["acme"] == [1, 2, 4, 5]
    first, second = await working.rows(
        "select sequence, event_id, reason, deliveries, trace, traceback, payload, state from tenantry.dead_letters "
        "order by sequence"
    )
    assert first[:5] == (3, "acme-3", "ValueError: three is too much", 3, "00-" + "1" * 32 + "-" + "2" * 16 + "-01")
    assert "three is too much" in first[5]
    assert bytes(second[6]) == b"no event at all"
    assert second[3] == 1
    assert "cannot be decoded" in second[2]


async def test_only_the_wanted_types_are_handled(working: Working) -> None:
    await working.tenant("acme")
    for type in ("order.created", "order.line.added", "invoice.paid", "order.paid"):
        await working.publish("acme", 1, type=type)
    app, some, overlapping = Tenantry("shop"), Seen(), Seen()
    app.subscriber("some", types=["order.*"])(some)
    app.subscriber("overlapping", types=["order.*", "*.paid"])(overlapping)
    async with working.worker(app):
        await until(lambda: some.count >= 2 and overlapping.count >= 3)
    assert some.numbers["acme"] == [1, 4]
    assert overlapping.numbers["acme"] == [1, 3, 4]


class Order(msgspec.Struct):
    total: int


class Customer(BaseModel):
    name: str


async def test_data_is_of_the_type_that_the_handler_names(working: Working) -> None:
    await working.tenant("acme")
    app, orders, customers = Tenantry("shop"), list[Any](), list[Any]()

    @app.subscriber("orders", types=["order.created"])
    async def on_order(event: Event[Order], context: Context) -> None:
        orders.append(event.data)

    @app.subscriber("customers", types=["customer.created"])
    async def on_customer(event: Event[Customer], context: Context) -> None:
        customers.append(event.data)

    await working.publish_documents("acme", [document("acme", 1, data={"total": 5}), document("acme", 2, data={})])
    await working.publish_documents(
        "acme",
        [document("acme", 3, "customer.created", data={"name": "Ada"}), document("acme", 4, "customer.created")],
        type="customer.created",
    )
    async with working.worker(app):

        async def two_died() -> bool:
            return len(await working.rows("select 1 from tenantry.dead_letters")) == 2

        await until(two_died)
        await until(lambda: bool(orders and customers))
    assert orders == [Order(5)]
    assert customers == [Customer(name="Ada")]


async def test_a_batch_that_fails_is_handled_one_by_one(working: Working) -> None:
    await working.tenant("acme")
    await working.publish("acme", 50)
    app, seen, sizes = Tenantry("shop"), list[int](), list[int]()

    @app.subscriber("orders", batch=10, retries=0)
    async def handle(events: list[Event[int]], context: Context) -> None:
        sizes.append(len(events))
        if any(event.data == 25 for event in events):
            raise ValueError("there is a 25")
        seen.extend(event.data for event in events)

    async with working.worker(app):
        await until(lambda: len(seen) >= 49)
    assert seen == [number for number in range(1, 51) if number != 25]
    assert max(sizes) > 1


async def test_the_boundary_names_the_tenant(working: Working, signals: list[tuple[str, dict[str, object]]]) -> None:
    await working.tenant("acme")
    await working.publish("acme", 1, tenantid="globex", sequence="12")
    app, seen = Tenantry("shop"), Seen()
    app.subscriber("orders")(seen)
    async with working.worker(app):
        await until(lambda: seen.count == 1)
    assert seen.numbers == {"acme": [1]}
    assert ("tenants.claim_overridden", {"tenant": "acme", "claimed": "globex"}) in signals
