"""A projection that is rebuilt while its events go on."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tenantry import Event, Tenantry
from tenantry.pipelines import rebuild
from tenantry.pipelines.job_desk import JobDesk
from tests.pipelines.asking import (
    ask,
    do,
    expire,
    folded,
    last_sequence,
    order,
    stored_documents,
    until_documents,
    until_ended,
)
from tests.pipelines.running import Running, event
from tests.pipelines.shop import app

PROJECTION = "customers"


def doubling() -> Tenantry:
    """The application after its code was changed."""
    changed = Tenantry("shop")

    @changed.projection(PROJECTION, types=["order.*"], key="data.customer", initial={"orders": 0, "total": 0})
    def customers(state: dict[str, Any], event: Event) -> dict[str, Any]:
        state["orders"] += 1
        state["total"] += 2 * event.data["amount"]
        return state

    return changed


async def lane_of(running: Running, tenant: str, pipeline: str = PROJECTION) -> dict[str, Any]:
    return (await running.lanes()).get((pipeline, tenant, "events"), {})


async def test_a_tenants_documents_are_made_anew_and_those_of_others_are_left_as_they_are(running: Running) -> None:
    tiers = {"acme": "stream", "globex": "account", "pooly": "pooled", "poolz": "pooled"}
    for tenant, tier in tiers.items():
        await running.tenant(tenant, tier)
        await running.publish(tenant, map(order, range(30)))
    async with running.pipelines(app):
        for tenant in tiers:
            await until_documents(running, tenant, folded(30))
    async with running.pipelines(doubling()):
        for tenant, others in (("acme", ("globex", "pooly", "poolz")), ("pooly", ("globex", "poolz"))):
            before = [await stored_documents(running, other) for other in others]
            done = await do(running, "rebuild", PROJECTION, tenant)
            assert (done.state, done.problem) == ("done", "")
            assert done.done == done.total
            assert await running.documents(tenant, PROJECTION) == folded(30, times=2)
            assert [await stored_documents(running, other) for other in others] == before
        assert {row["generation"] for row in await stored_documents(running, "acme")} == {2}
        assert (await do(running, "rebuild", PROJECTION, None)).state == "done"
        for tenant in tiers:
            assert await running.documents(tenant, PROJECTION) == folded(30, times=2)
            await running.publish(tenant, map(order, range(30, 35)))
        for tenant in tiers:
            await until_documents(running, tenant, folded(35, times=2))
    assert not [lane for lane in await running.lanes() if ":" in lane[0]]


async def test_events_that_come_in_meanwhile_are_applied_once(running: Running) -> None:
    await running.tenant("acme")
    await running.publish("acme", map(order, range(500)))
    async with running.pipelines(app):
        await running.until_at(PROJECTION, "acme", 500)
        count, is_over = 500, asyncio.Event()
        job = await ask(running, "rebuild", PROJECTION)

        async def publish() -> None:
            nonlocal count
            while not is_over.is_set():
                await running.publish("acme", map(order, range(count, count + 7)))
                count += 7
                await asyncio.sleep(0.05)

        publishing = asyncio.create_task(publish())
        assert (await until_ended(running, job)).problem == ""
        is_over.set()
        await publishing
        last = await last_sequence(running, "acme")
        await running.until_at(PROJECTION, "acme", last)
    assert await running.documents("acme", PROJECTION) == folded(last)
    assert {row["generation"] for row in await stored_documents(running, "acme")} == {2}


async def test_a_parked_lane_goes_on_after_a_rebuild_with_code_that_takes_its_events(running: Running) -> None:
    tiers = {"acme": "stream", "pooly": "pooled"}
    for tenant, tier in tiers.items():
        await running.tenant(tenant, tier)
        await running.publish(tenant, [order(0), order(1, poison=True), order(2)])
    await running.tenant("globex")
    await running.publish("globex", [order(0)])
    async with running.pipelines(app):
        for tenant in tiers:
            await running.until_parked(PROJECTION, tenant)
        before = await stored_documents(running, "acme")
        failed = await do(running, "rebuild", PROJECTION, None)
        assert failed.state == "failed"
        assert "acme/events: ValueError: cannot take event-1 (sequence 2)" in failed.problem
        assert "globex" not in failed.problem
        assert await stored_documents(running, "acme") == before
        assert (await lane_of(running, "acme"))["parked_sequence"] == 2
        assert (await lane_of(running, "globex"))["generation"] == 2
    async with running.pipelines(doubling()):
        assert (await do(running, "rebuild", PROJECTION, None)).state == "done"
        for tenant in tiers:
            assert await running.documents(tenant, PROJECTION) == folded(3, times=2)
            await running.publish(tenant, [order(3)])
            await until_documents(running, tenant, folded(4, times=2))


async def test_a_process_that_died_in_the_middle_is_succeeded_by_one_that_goes_on(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rebuild, "CHUNK", 10)
    await running.tenant("acme")
    await running.publish("acme", map(order, range(100)))
    async with running.pipelines(app):
        await running.until_at(PROJECTION, "acme", 100)
        job = await ask(running, "rebuild", PROJECTION)

        async def is_under_way() -> bool:
            return bool((await lane_of(running, "acme", f"{PROJECTION}:rebuild")).get("sequence", 0) >= 10)

        await running.until(is_under_way, "the rebuild should be under way")
    assert (await JobDesk(running.administration).get(str(job.id))).state == "running"
    assert 0 < (await lane_of(running, "acme", f"{PROJECTION}:rebuild"))["sequence"] < 100
    assert await running.documents("acme", PROJECTION) == folded(100)
    await running.publish("acme", map(order, range(100, 110)))
    async with running.pipelines(app):
        assert (await until_ended(running, job)).state == "done"
        await until_documents(running, "acme", folded(110))
    assert {row["generation"] for row in await stored_documents(running, "acme")} == {2}


async def test_what_is_cancelled_leaves_the_documents_as_they_were(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rebuild, "CHUNK", 1)
    await running.tenant("acme")
    await running.publish("acme", map(order, range(200)))
    async with running.pipelines(app):
        await running.until_at(PROJECTION, "acme", 200)
        before = await stored_documents(running, "acme")
        job = await ask(running, "rebuild", PROJECTION)

        async def is_under_way() -> bool:
            return len(await stored_documents(running, "acme")) > len(before)

        await running.until(is_under_way, "documents should be made aside")
        await JobDesk(running.administration).cancel(str(job.id), "test")
        assert (await until_ended(running, job)).state == "cancelled"
    assert await stored_documents(running, "acme") == before
    assert not [lane for lane in await running.lanes() if ":" in lane[0]]


async def test_what_the_stream_has_no_more_comes_from_the_warehouse(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rebuild, "CHUNK", 20)
    tiers = {"acme": "stream", "pooly": "pooled", "poolz": "pooled"}
    for tenant, tier in tiers.items():
        await running.tenant(tenant, tier)
        await running.publish(tenant, [*map(order, range(50)), b"no event", event(0, "user.seen"), order(50)])
    async with running.pipelines(app):
        for tenant in tiers:
            last = await last_sequence(running, tenant)
            await running.until_at("warehouse", tenant, last)
            await until_documents(running, tenant, folded(51))
            await expire(running, tenant, last - 15)
        assert (await do(running, "rebuild", PROJECTION, None)).problem == ""
        for tenant in tiers:
            assert await running.documents(tenant, PROJECTION) == folded(51)
            assert {row["generation"] for row in await stored_documents(running, tenant)} == {2}


async def test_what_is_no_projection_is_not_rebuilt(running: Running) -> None:
    await running.tenant("acme")
    await running.publish("acme", [order(0)])
    async with running.pipelines(app):
        await running.until_at("orders", "acme", 1)
        failed = await do(running, "rebuild", "orders")
        assert failed.state == "failed"
        assert "tenantry replay" in failed.problem


@pytest.mark.parametrize("is_swapped", [False, True])
async def test_a_process_that_died_before_it_could_say_what_it_had_done_is_succeeded(
    running: Running, is_swapped: bool
) -> None:
    await running.tenant("acme")
    await running.publish("acme", map(order, range(20)))
    async with running.pipelines(app):
        await running.until_at(PROJECTION, "acme", 20)
        if is_swapped:
            assert (await do(running, "rebuild", PROJECTION)).state == "done"
    # What was made aside is gone or served, and the job is still on record as running.
    await ask(running, "rebuild", PROJECTION)
    await running.ask(
        """update tenantry.pipeline_jobs set state = 'running', progress = '{"generations": {"acme/events": 2}}'
           where state = 'waiting'"""
    )
    async with running.pipelines(app):
        (job, *_) = await JobDesk(running.administration).newest(1)
        assert (await until_ended(running, job)).problem == ""
    assert {row["generation"] for row in await stored_documents(running, "acme")} == {2}
    assert await running.documents("acme", PROJECTION) == folded(20)
