"""Lanes that change hands while events come in: to a query of their own, to another stream, or for a while to none."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tests.pipelines.running import Running, event
from tests.pipelines.shop import app, fold
from tests.pipelines.test_pipelines import last_sequence


class Producer:
    """Publishes one event after the other, each with its number."""

    def __init__(self, running: Running, tenant: str) -> None:
        self._running = running
        self._tenant = tenant
        self.sent = 0

    async def run(self) -> None:
        while True:
            number = self.sent
            try:
                await self._running.publish(self._tenant, [event(number, customer=f"c{number % 3}", amount=number + 1)])
            except Exception:
                # A lane takes nothing in the moment of its move; what is repeated is stored once by its id.
                await asyncio.sleep(0.05)
                continue
            self.sent += 1
            await asyncio.sleep(0.03)


@asynccontextmanager
async def producing(running: Running, tenant: str) -> AsyncIterator[Producer]:
    producer = Producer(running, tenant)
    task = asyncio.create_task(producer.run())
    try:
        yield producer
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def until_more(running: Running, tenant: str, more: int = 20) -> None:
    """Wait until the documents have come further by so many events."""
    lanes = await running.lanes()
    await running.until_at("customers", tenant, lanes["customers", tenant, "events"]["sequence"] + more)


async def until_all(running: Running, tenant: str) -> None:
    end = await last_sequence(running, tenant)
    for pipeline in ("warehouse", "orders", "customers"):
        await running.until_at(pipeline, tenant, end)


async def assert_each_once(running: Running, tenant: str, sent: int) -> None:
    numbers = [json.loads(row["data"])["number"] for row in running.rows(tenant)]
    # The last one may have been stored without its producer knowing.
    assert sorted(set(numbers))[:sent] == list(range(sent))
    assert len({row["sequence"] for row in running.rows(tenant)}) == len(numbers)
    # A producer that repeats what it was not told of may store an event twice; then the lane has it twice.
    lane = [json.loads(row["data"]) for row in running.rows(tenant)]
    assert [row["amount"] for row in running.rows(tenant, "orders")] == [float(each["amount"]) for each in lane]
    assert await running.documents(tenant, "customers") == fold(lane)


async def test_a_tenant_gets_a_query_of_its_own_and_gives_it_back(running: Running) -> None:
    for tenant, tier in (("acme", "stream"), ("pooly", "pooled"), ("other", "stream")):
        await running.tenant(tenant, tier)
    async with (
        running.pipelines(app) as engine,
        producing(running, "acme") as acme,
        producing(running, "pooly") as pooly,
    ):
        for tenant in ("acme", "pooly"):
            await running.until_at("customers", tenant, 10)
        for is_dedicated in (True, False):
            for tenant in ("acme", "pooly"):
                await running.change(tenant, dedicated=is_dedicated)
            for tenant in ("acme", "pooly"):

                async def is_handed_over(
                    query: str = tenant if is_dedicated else "shared", tenant: str = tenant
                ) -> bool:
                    lanes = await running.lanes()
                    return all(
                        lanes[pipeline, tenant, "events"]["query"] == query
                        for pipeline in ("warehouse", "orders", "customers")
                    )

                await running.until(is_handed_over, f"{tenant} should be handed over")
                await until_more(running, tenant)
            assert set(engine.pipelines["customers"].queries) >= (
                {"shared", "acme", "pooly"} if is_dedicated else {"shared"}
            )

        async def has_one_query() -> bool:
            return set(engine.pipelines["customers"].queries) == {"shared"}

        await running.until(has_one_query, "queries that read nothing should end")
    async with running.pipelines(app):
        for tenant, producer in (("acme", acme), ("pooly", pooly)):
            await until_all(running, tenant)
            await assert_each_once(running, tenant, producer.sent)


async def test_a_tenant_moves_up_the_tiers_while_events_come_in(running: Running) -> None:
    await running.tenant("other", "pooled")
    await running.publish("other", [event(number, customer="c", amount=1) for number in range(50)])
    await running.tenant("acme", "pooled")
    async with running.pipelines(app), producing(running, "acme") as acme:
        await running.until_at("customers", "acme", 60)
        for tier in ("stream", "account"):
            await running.administration.move("acme", tier, "test")
            await until_more(running, "acme")
    async with running.pipelines(app):
        await until_all(running, "acme")
        await assert_each_once(running, "acme", acme.sent)


async def test_a_suspended_tenant_is_left_alone_and_goes_on_where_it_was(running: Running) -> None:
    for tenant, tier in (("acme", "stream"), ("pooly", "pooled")):
        await running.tenant(tenant, tier)
        await running.publish(tenant, [event(number, customer="c", amount=1) for number in range(5)])
    async with running.pipelines(app):
        for tenant in ("acme", "pooly"):
            await running.until_at("customers", tenant, 5)
            await running.administration.suspend(tenant, "test")
        await running.roster.refresh()
        await running.tenant("other")
        await running.publish("other", [event(0, customer="c", amount=1)])
        await running.until_at("customers", "other", 1)
        for tenant in ("acme", "pooly"):
            await running.administration.resume(tenant, "test")
            await running.publish(tenant, [event(number, customer="c", amount=1) for number in range(5, 8)])
        for tenant in ("acme", "pooly"):
            await until_all(running, tenant)
            await assert_each_once(running, tenant, 8)
