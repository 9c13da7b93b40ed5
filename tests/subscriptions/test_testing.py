"""What users test their handlers with."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import msgspec
import psycopg
import pytest
from pydantic import BaseModel

from tenantry.application import Context, Event, Tenantry
from tenantry.errors import ApplicationInvalid, SubjectInvalid, TenantryError
from tenantry.postgres.migrations import Migrations
from tenantry.postgres.pool import connect
from tenantry.testing import Rehearsal, TestPlatform, running
from tests.subscriptions.working import Seen


class Invoice(msgspec.Struct):
    total: int


class Customer(BaseModel):
    name: str


async def test_an_event_goes_to_every_subscriber_that_it_is_for() -> None:
    app, invoices, everything, others = Tenantry("shop"), Seen(), Seen(), Seen()
    app.subscriber("invoices", types=["invoice.*"])(invoices)
    app.subscriber("everything")(everything)
    app.subscriber("orders", types=["order.*"])(others)
    app.subscriber("elsewhere", channel="properties")(others)
    outcomes = await Rehearsal(app).deliver("acme", "invoice.paid", 5)
    assert sorted(outcomes) == ["everything", "invoices"]
    assert outcomes["invoices"].handled
    assert outcomes["invoices"].attempts == 1
    assert invoices.numbers == everything.numbers == {"acme": [5]}
    with pytest.raises(KeyError, match="events is not for a subscriber orders; it is for invoices, everything"):
        outcomes["orders"]


async def test_a_handler_is_told_what_a_worker_tells_it() -> None:
    app, seen = Tenantry("shop"), list[tuple[Event[Any], Context]]()

    @app.subscriber("invoices", channel="properties")
    async def handle(event: Event[Any], context: Context) -> None:
        seen.append((event, context))

    rehearsal, trace = Rehearsal(app), "00-" + "1" * 32 + "-" + "2" * 16 + "-01"
    for number in (1, 2):
        await rehearsal.deliver(
            "acme", "invoice.paid", {"total": number}, channel="properties", id="7", subject="ann", traceparent=trace
        )
    event, context = seen[1]
    assert (event.tenant, event.channel, event.sequence) == ("acme", "properties", 2)
    assert (event.id, event.subject, event.trace, event.data) == ("7", "ann", trace, {"total": 2})
    assert event.time is not None
    assert (context.service, context.tenant, context.sequence, context.attempt) == ("invoices", "acme", 2, 1)
    assert context.subject == "tenantry.tenants.acme.properties.invoice.paid"
    assert not context.is_replay


async def test_what_fails_is_tried_again_without_waiting_until_it_is_a_dead_letter() -> None:
    app, attempts = Tenantry("shop"), list[int]()

    @app.subscriber("invoices", retries=3, backoff=[60.0, 600.0])
    async def handle(event: Event[int], context: Context) -> None:
        attempts.append(context.attempt)
        if event.data == 1 or context.attempt < 3:
            raise ValueError("not yet")

    rehearsal = Rehearsal(app)
    began = time.monotonic()
    dead = (await rehearsal.deliver("acme", "invoice.paid", 1, id="7"))["invoices"]
    assert time.monotonic() - began < 30
    assert attempts == [1, 2, 3, 4]
    assert not dead.handled
    assert isinstance(dead.error, ValueError)
    assert [30 <= dead.pauses[0] <= 60, 300 <= dead.pauses[1] <= 600, len(dead.pauses)] == [True, True, 3]
    assert dead.dead_letter is not None
    assert (dead.dead_letter.reason, dead.dead_letter.state) == ("ValueError: not yet", "dead")
    assert "in handle" in dead.dead_letter.traceback
    assert rehearsal.dead_letters == [dead.dead_letter]
    late = (await rehearsal.deliver("acme", "invoice.paid", 2))["invoices"]
    assert (late.handled, late.attempts, late.error, late.dead_letter) == (True, 3, None, None)


async def test_data_is_decoded_as_by_a_worker() -> None:
    app, seen = Tenantry("shop"), list[Any]()

    @app.subscriber("invoices", types=["invoice.*"])
    async def on_invoice(event: Event[Invoice], context: Context) -> None:
        seen.append(event.data)

    @app.subscriber("customers", types=["customer.*"])
    def on_customer(event: Event[Customer], context: Context) -> None:
        seen.append(event.data)

    rehearsal = Rehearsal(app)
    await rehearsal.deliver("acme", "invoice.paid", Invoice(5))
    await rehearsal.deliver("acme", "customer.created", {"name": "Ada"})
    assert seen == [Invoice(5), Customer(name="Ada")]
    wrong = await rehearsal.deliver("acme", "invoice.paid", {"total": "much"})
    (none,) = await rehearsal.deliver_documents("acme", "invoice.paid", [b"no event at all"])
    for outcome in (wrong["invoices"], none["invoices"]):
        assert (outcome.attempts, outcome.error) == (0, None)
        assert outcome.dead_letter is not None
        assert "cannot be decoded" in outcome.dead_letter.reason
    with pytest.raises(SubjectInvalid, match="expected tenant to match"):
        await rehearsal.deliver("Acme Inc", "invoice.paid")


async def test_a_batch_that_fails_is_handled_one_by_one() -> None:
    app, lists = Tenantry("shop"), list[list[int]]()

    @app.subscriber("invoices", batch=3, retries=0)
    async def handle(events: list[Event[int]], context: Context) -> None:
        lists.append([event.data for event in events])
        if 2 in lists[-1]:
            raise ValueError("two")

    outcomes = await Rehearsal(app).deliver_many("acme", "invoice.paid", [1, 2, 3, 4])
    assert lists == [[1, 2, 3], [1], [2], [3], [4]] or lists == [[1, 2, 3], [1], [2], [3, 4]]
    assert [each["invoices"].handled for each in outcomes] == [True, False, True, True]


async def test_a_handler_that_takes_too_long_has_failed() -> None:
    app = Tenantry("shop")

    @app.subscriber("slow", timeout=0.01, retries=1)
    async def handle(event: Event[Any], context: Context) -> None:
        await asyncio.sleep(60)

    outcome = (await Rehearsal(app).deliver("acme", "invoice.paid"))["slow"]
    assert isinstance(outcome.error, TimeoutError)
    assert outcome.dead_letter is not None
    assert outcome.dead_letter.reason == "TimeoutError: the handler took longer than 0.01 s"
    assert outcome.attempts == 2


async def test_what_has_the_key_of_a_dead_letter_is_held_back_until_it_is_redriven() -> None:
    app, seen, is_fixed = Tenantry("shop"), list[int](), False

    @app.subscriber("invoices", after_last_retry="park_key", retries=0)
    async def handle(event: Event[int], context: Context) -> None:
        if event.data == 1 and not is_fixed:
            raise ValueError("one")
        seen.append(event.data)

    rehearsal = Rehearsal(app)
    outcomes = [
        (await rehearsal.deliver("acme", "invoice.paid", number, subject=subject))["invoices"]
        for number, subject in enumerate(["ann", "ann", "bob"], 1)
    ]
    assert [letter.state for letter in rehearsal.dead_letters] == ["parked", "held"]
    assert seen == [3]
    await rehearsal.redrive("acme", "invoices")
    assert [letter.state for letter in rehearsal.dead_letters] == ["parked", "held"]
    is_fixed = True
    await rehearsal.redrive("acme", "invoices")
    assert seen == [3, 1, 2]
    assert rehearsal.dead_letters == []
    assert all(outcome.handled and outcome.dead_letter is None for outcome in outcomes)
    assert (await rehearsal.deliver("acme", "invoice.paid", 4, subject="ann"))["invoices"].handled
    with pytest.raises(ApplicationInvalid, match="expected a subscriber of shop, one of invoices, got: order"):
        await rehearsal.redrive("acme", "order")


async def test_everything_waits_for_a_dead_letter_at_which_a_tenant_is_stopped() -> None:
    app, seen, is_fixed = Tenantry("shop"), list[int](), False

    @app.subscriber("invoices", after_last_retry="stop", retries=1)
    async def handle(event: Event[int], context: Context) -> None:
        if event.data == 1 and not is_fixed:
            raise ValueError("one")
        seen.append(event.data)

    rehearsal = Rehearsal(app)
    first = (await rehearsal.deliver("acme", "invoice.paid", 1))["invoices"]
    second = (await rehearsal.deliver("acme", "invoice.paid", 2))["invoices"]
    other = (await rehearsal.deliver("globex", "invoice.paid", 3))["invoices"]
    assert (first.waits, second.waits, second.handled, other.handled) == (False, True, False, True)
    is_fixed = True
    await rehearsal.redrive("acme", "invoices")
    assert seen == [3, 1, 2]
    assert (first.handled, second.handled, second.waits) == (True, True, False)


async def test_an_event_is_handled_in_the_part_that_its_key_says() -> None:
    app, parts = Tenantry("shop"), dict[str, set[int]]()

    @app.subscriber("invoices", partition_by="data.customer", partitions=4)
    async def handle(event: Event[dict[str, str]], context: Context) -> None:
        parts.setdefault(event.data["customer"], set()).add(context.part)

    rehearsal = Rehearsal(app)
    for number in range(40):
        outcomes = await rehearsal.deliver("acme", "invoice.paid", {"customer": f"c{number % 10}"})
        assert outcomes["invoices"].handled
    assert len(parts) == 10
    assert all(len(each) == 1 for each in parts.values())
    assert len(set.union(*parts.values())) > 1


async def test_once_is_remembered_without_a_database_if_the_handler_ends_well() -> None:
    app, charged = Tenantry("shop"), list[str]()

    @app.subscriber("invoices", retries=1)
    async def handle(event: Event[str], context: Context) -> None:
        if not await context.once(None):
            return
        if context.attempt == 1 and event.data == "late":
            raise ConnectionError("away")
        charged.append(event.id)

    @app.subscriber("receipts")
    def write(event: Event[str], context: Context) -> None:
        if context.once("no connection"):
            charged.append(f"receipt of {event.id}")

    rehearsal = Rehearsal(app)
    for id, data in (("1", ""), ("1", ""), ("2", "late")):
        assert (await rehearsal.deliver("acme", "invoice.paid", data, id=id))["invoices"].handled
    assert charged == ["1", "receipt of 1", "2", "receipt of 2"]
    assert ("invoices", "acme", "2") in rehearsal.once


async def test_once_is_asked_of_the_database_if_there_is_one(database: str) -> None:
    app, effects = Tenantry("shop"), list[str]()
    async with connect(database, autocommit=True) as connection:
        await Migrations(outbox_only=True).apply(connection)

        @app.subscriber("invoices", retries=0)
        async def handle(event: Event[Any], context: Context) -> None:
            async with connection.transaction():
                if await context.once(connection):
                    effects.append(event.id)
                    if event.data == "fail" and len(effects) == 1:
                        raise ValueError("rolled back")

        for id in ("1", "1", "1"):
            await Rehearsal(app).deliver("acme", "invoice.paid", "fail", id=id)
    assert effects == ["1", "1"]


async def test_one_delivery_ends_before_the_next() -> None:
    app, rehearsal = Tenantry("shop"), None

    @app.subscriber("invoices", retries=0)
    async def handle(event: Event[Any], context: Context) -> None:
        assert rehearsal is not None
        await rehearsal.deliver("acme", "invoice.paid")

    rehearsal = Rehearsal(app)
    outcome = (await rehearsal.deliver("acme", "invoice.paid"))["invoices"]
    assert "is still at an event of acme" in str(outcome.error)


async def test_subscribers_run_on_the_real_servers(platform: TestPlatform) -> None:
    app, seen, is_fixed = Tenantry("shop"), Seen(), False

    @app.subscriber("invoices", types=["invoice.*"], retries=1, backoff=0.05)
    async def handle(event: Event[int], context: Context) -> None:
        if event.data == 2 and not is_fixed:
            raise ValueError("two")
        async with await psycopg.AsyncConnection.connect(stage.database_url) as connection:
            assert await context.once(connection)
        seen.add(event, context)

    async with running(app, tenants=["acme"], platform=platform) as stage:
        for number in (1, 2, 3):
            await stage.publish("acme", "invoice.paid", number)
        await stage.emit("globex", "invoice.paid", 4)
        await stage.until_idle()
        assert seen.numbers == {"acme": [1, 3], "globex": [4]}
        (letter,) = await stage.dead_letters("acme")
        assert (letter.reason, letter.deliveries, letter.service) == ("ValueError: two", 2, "invoices")
        is_fixed = True
        await stage.redrive("acme")
        assert seen.numbers["acme"] == [1, 3, 2]
        assert await stage.dead_letters() == []


async def test_idle_is_also_who_waits_for_a_dead_letter_and_a_handler_that_hangs_is_named(
    platform: TestPlatform,
) -> None:
    app, let_go = Tenantry("shop"), asyncio.Event()

    @app.subscriber("invoices", types=["invoice.*"], after_last_retry="stop", retries=0)
    async def handle(event: Event[int], context: Context) -> None:
        raise ValueError("never")

    @app.subscriber("orders", types=["order.*"])
    async def wait(event: Event[int], context: Context) -> None:
        await let_go.wait()

    async with running(app, platform=platform) as stage:
        for number in (1, 2):
            await stage.publish("acme", "invoice.paid", number)
        await stage.until_idle()
        assert [letter.state for letter in await stage.dead_letters()] == ["stopped"]
        await stage.publish("acme", "order.created")
        with pytest.raises(TenantryError, match=r"handled within 0.5 s: 1 events of acme for orders"):
            await stage.until_idle(0.5)
        let_go.set()
        await stage.until_idle()


async def test_servers_of_its_own_are_started_if_none_are_named() -> None:
    app, seen = Tenantry("shop"), Seen()
    app.subscriber("invoices")(seen)
    async with running(app) as stage:
        await stage.publish("acme", "invoice.paid", 1)
        await stage.until_idle()
    assert seen.numbers == {"acme": [1]}
