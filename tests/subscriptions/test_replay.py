"""Handled once more: beside what is live, or by moving back."""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import UUID

import pytest
from psycopg.types.json import Jsonb

from tenantry.application import Context, Event, Tenantry
from tenantry.subscriptions.worker import Limits
from tests.subscriptions.working import Seen, Working, until


async def ask(working: Working, kind: str, tenant: str = "acme", **request: Any) -> UUID:
    rows = await working.rows(
        "insert into tenantry.subscription_jobs (kind, service, tenant_id, request, asked_by) "
        "values (%s, 'orders', %s, %s, 'test') returning id",
        kind,
        tenant,
        Jsonb(request),
    )
    id: UUID = rows[0][0]
    return id


async def state_of(working: Working, job: UUID) -> tuple[str, int, int]:
    row = (await working.rows("select state, done, total from tenantry.subscription_jobs where id = %s", job))[0]
    return row[0], row[1], row[2]


async def until_state(working: Working, job: UUID, state: str) -> None:
    async def has_it() -> bool:
        return (await state_of(working, job))[0] == state

    await until(has_it)


@pytest.mark.parametrize("order", ["fifo", "parallel"])
async def test_a_replay_goes_beside_the_live_events(working: Working, order: Any) -> None:
    await working.tenant("acme")
    await working.publish("acme", 50)
    app, live, again = Tenantry("shop"), Seen(), Seen()

    @app.subscriber("orders", order=order)
    async def handle(event: Event[int], context: Context) -> None:
        (again if context.is_replay else live).add(event, context)

    async with working.worker(app):
        await until(lambda: live.count == 50)
        job = await ask(working, "replay", from_sequence=11)

        async def has_begun() -> bool:
            return (await state_of(working, job))[2] == 40

        await until(has_begun)
        await working.publish("acme", 20)
        await until_state(working, job, "done")
        await until(lambda: live.count == 70)
        assert sorted(live.numbers["acme"]) == working.published["acme"]
        assert sorted(again.numbers["acme"]) == list(range(11, 51))
        if order == "fifo":
            assert again.numbers["acme"] == list(range(11, 51))
        assert await state_of(working, job) == ("done", 40, 40)
        lane = await working.administration.lanes.resolve("acme", "events")
        names = [each["name"] async for each in working.administration.backbone.platform.consumers(lane.stream)]
        assert names == ["orders"]


async def test_a_rewind_moves_the_live_position_back(working: Working) -> None:
    await working.tenant("acme")
    await working.publish("acme", 30)
    app, seen = Tenantry("shop"), Seen()
    app.subscriber("orders")(seen)
    async with working.worker(app):
        await until(lambda: seen.count == 30)
        job = await ask(working, "rewind", from_sequence=21)
        await until(lambda: seen.count == 40)
        await until_state(working, job, "done")
        await working.publish("acme", 5)
        await until(lambda: seen.count == 45)
    assert seen.numbers["acme"] == [*range(1, 31), *range(21, 31), *range(31, 36)]


async def test_a_replay_survives_its_worker_and_can_be_cancelled(working: Working) -> None:
    await working.tenant("acme")
    await working.publish("acme", 100)
    app, seen, permits = Tenantry("shop"), Seen(), asyncio.Semaphore(10)

    @app.subscriber("orders")
    async def handle(event: Event[int], context: Context) -> None:
        if context.is_replay:
            await permits.acquire()
        seen.add(event, context)

    hasty = Limits(drain_seconds=0.1)
    async with working.worker(app, id="first", limits=hasty):
        await until(lambda: seen.count == 100)
        job = await ask(working, "replay", from_sequence=1)
        await until(lambda: seen.count == 110)
    async with working.worker(app, id="second", limits=hasty):
        for _ in range(10):
            permits.release()
        await until(lambda: seen.count == 120)
        await working.rows("update tenantry.subscription_jobs set state = 'cancelling' where id = %s returning 1", job)

        async def is_cancelled() -> bool:
            # What has begun may end; the rest does not begin.
            permits.release()
            return (await state_of(working, job))[0] == "cancelled"

        await until(is_cancelled)
    assert seen.numbers["acme"][100:] == list(range(1, len(seen.numbers["acme"]) - 99))
    assert (await state_of(working, job))[2] == 100


async def test_a_replay_from_a_time_begins_there(working: Working) -> None:
    await working.tenant("acme")
    await working.publish("acme", 10)
    app, live, again = Tenantry("shop"), Seen(), Seen()

    @app.subscriber("orders")
    async def handle(event: Event[int], context: Context) -> None:
        (again if context.is_replay else live).add(event, context)

    async with working.worker(app):
        await until(lambda: live.count == 10)
        moment = live.contexts[9].stored_at
        await working.publish("acme", 5)
        await until(lambda: live.count == 15)
        begin = live.contexts[10].stored_at
        assert begin > moment
        job = await ask(working, "replay", **{"from": begin.isoformat()})
        await until_state(working, job, "done")
    assert again.numbers["acme"] == list(range(11, 16))
