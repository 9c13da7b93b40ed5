"""Tenants over workers: who has whom, how they change hands, and that nobody has one twice."""

from __future__ import annotations

import asyncio
import time
from collections import Counter, defaultdict
from contextlib import AsyncExitStack

from tenantry.application import Context, Event, Tenantry
from tenantry.subscriptions.spreading import Partition, Spread
from tenantry.subscriptions.worker import Worker
from tests.subscriptions.working import Seen, Working, until

TENANTS = 40


def holders(workers: list[Worker]) -> dict[str, str]:
    """Who has each tenant; nobody is had twice."""
    found: dict[str, str] = {}
    for worker in workers:
        for partition, holding in worker.holdings.items():
            if holding.intake is not None and not holding.is_closing:
                assert partition.tenant not in found, f"{partition.tenant} is held twice"
                found[partition.tenant] = worker.id
    return found


def are_settled(workers: list[Worker], tenants: int) -> bool:
    """Whether everybody has who they are to have."""
    members = [worker.members for worker in workers]
    if any(len(each) != len(workers) for each in members):
        return False
    spread, found = Spread(members[0]), holders(workers)
    return len(found) == tenants and all(
        spread.owner(Partition("orders", tenant, 0), "pro") == worker for tenant, worker in found.items()
    )


async def test_a_fourth_worker_takes_its_share_and_nothing_else_moves(working: Working) -> None:
    names = await working.tenants(TENANTS)
    app, fences, overlaps = Tenantry("shop"), defaultdict[str, list[int]](list), list[str]()
    running: set[str] = set()

    @app.subscriber("orders")
    async def handle(event: Event[int], context: Context) -> None:
        if event.tenant in running:
            overlaps.append(event.tenant)
        running.add(event.tenant)
        await asyncio.sleep(0.001)
        running.discard(event.tenant)
        fences[event.tenant].append(context.fence)
        seen.add(event, context)

    seen = Seen()
    async with AsyncExitStack() as stack:
        workers = [await stack.enter_async_context(working.worker(app, id=f"worker-{n}")) for n in range(3)]
        await until(lambda: are_settled(workers, TENANTS))
        before = holders(workers)
        for name in names:
            await working.publish(name, 50)
        await until(lambda: seen.count > 200)
        workers.append(await stack.enter_async_context(working.worker(app, id="worker-3")))
        await until(lambda: are_settled(workers, TENANTS))
        after = holders(workers)
        await until(lambda: seen.count >= 50 * TENANTS)
    moved = {name for name in names if before[name] != after[name]}
    assert all(after[name] == "worker-3" for name in moved)
    assert TENANTS / 10 < len(moved) < TENANTS / 2
    assert len(Counter(before.values())) == 3
    assert seen.numbers == working.published
    assert not overlaps
    assert all(each == sorted(each) for each in fences.values())
    assert {name for name in names if len(set(fences[name])) > 1} <= moved


async def test_a_worker_that_stops_hands_over_in_well_under_a_second(working: Working) -> None:
    names = await working.tenants(20)
    app, seen = Tenantry("shop"), Seen()
    app.subscriber("orders")(seen)
    async with working.worker(app, id="staying") as staying:
        async with working.worker(app, id="leaving") as leaving:
            await until(lambda: are_settled([staying, leaving], 20))
            assert len(holders([leaving])) > 3
            began = time.monotonic()
        await until(lambda: len(holders([staying])) == 20)
        seconds = time.monotonic() - began
        for name in names:
            await working.publish(name, 3)
        await until(lambda: seen.count == 60)
    assert seen.numbers == working.published
    # It is far less; but the claim of a worker that merely vanished would take three seconds at least.
    assert seconds < 2.5


async def test_workers_that_are_there_for_somebody_have_them_and_nobody_else(working: Working) -> None:
    await working.tenants(6)
    await working.tenant("acme")
    await working.tenant("globex", plan="enterprise")
    app, seen = Tenantry("shop"), Seen()
    app.subscriber("orders")(seen)
    async with (
        working.worker(app, id="anyone") as anyone,
        working.worker(app, id="for-acme", tenants=frozenset({"acme"})) as for_acme,
    ):
        async with working.worker(app, id="for-plan", plans=frozenset({"enterprise"})) as for_plan:
            workers = [anyone, for_acme, for_plan]
            await until(lambda: holders(workers).get("acme") == "for-acme")
            await until(lambda: holders(workers).get("globex") == "for-plan")
            await until(lambda: len(holders(workers)) == 8)
            assert set(holders([for_acme])) == {"acme"}
            assert set(holders([for_plan])) == {"globex"}
        # Nobody is left without a worker.
        await until(lambda: holders(workers).get("globex") == "anyone")


async def test_services_of_one_tenant_do_not_wait_for_each_other(working: Working) -> None:
    await working.tenant("acme")
    app, seen, stuck = Tenantry("shop"), Seen(), asyncio.Event()
    app.subscriber("quick")(seen)

    @app.subscriber("slow")
    async def handle(event: Event[int], context: Context) -> None:
        await stuck.wait()

    await working.publish("acme", 50)
    async with working.worker(app):
        await until(lambda: seen.count == 50)
        stuck.set()


async def test_a_tenant_that_appears_is_handled_and_one_that_is_suspended_is_not(working: Working) -> None:
    app, seen = Tenantry("shop"), Seen()
    app.subscriber("orders")(seen)
    async with working.worker(app) as worker:
        await working.tenant("acme")
        await working.publish("acme", 5)
        await until(lambda: seen.count == 5)
        await working.administration.suspend("acme", "test")
        await until(lambda: not worker.holdings)
        await working.administration.resume("acme", "test")
        await until(lambda: len(worker.holdings) == 1)
        await working.publish("acme", 5)
        await until(lambda: seen.count == 10)
    assert seen.numbers == working.published


async def test_parts_of_a_tenant_are_spread_and_each_is_in_order(working: Working) -> None:
    await working.tenant("acme")
    app, seen = Tenantry("shop"), defaultdict[int, list[int]](list)
    who = dict[int, str]()

    @app.subscriber("orders", partition_by=lambda event: event.data % 10, partitions=6)
    async def handle(event: Event[int], context: Context) -> None:
        seen[event.data % 10].append(event.data)
        who[event.data % 10] = context.worker

    await working.publish("acme", 400)
    async with working.worker(app, id="one"), working.worker(app, id="two"):
        await until(lambda: sum(map(len, seen.values())) >= 400)
    assert dict(seen) == {key: [n for n in range(1, 401) if n % 10 == key] for key in range(10)}


async def test_workers_that_start_at_the_same_moment_all_start(working: Working) -> None:
    await working.tenants(3)
    app = Tenantry("shop")
    app.subscriber("orders")(Seen())
    async with working.following():
        workers = [working.make_worker(app) for _ in range(5)]
        await asyncio.gather(*(worker.start() for worker in workers))
        await until(lambda: all(len(worker.members) == 5 for worker in workers))
        await asyncio.gather(*(worker.stop() for worker in workers))
