"""Tables that are filled again from events, while more come in."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.sql import DataFrame

from tenantry import Tenantry
from tenantry.pipelines import replay
from tenantry.pipelines.job_desk import JobDesk
from tests.pipelines.asking import ask, do, expire, last_sequence, order, until_ended
from tests.pipelines.running import Running
from tests.pipelines.shop import app


def priced() -> Tenantry:
    """The application after a column was added."""
    changed = Tenantry("shop")

    @changed.pipeline(table="orders", types=["order.*"])
    def orders(events: DataFrame) -> DataFrame:
        return events.selectExpr("tenant", "sequence", "id", "cast(data:amount as double) * 2 as price")

    return changed


def open_table(running: Running, tenant: str = "acme", table: str = "events") -> DeltaTable:
    return DeltaTable(f"{running.folder}/lake/tenant={tenant}/{table}")


def sequences(running: Running, tenant: str = "acme", table: str = "events") -> list[int]:
    return [row["sequence"] for row in running.rows(tenant, table)]


async def until_all_read(running: Running, tenants: Iterable[str], pipelines: Iterable[str]) -> None:
    for tenant, pipeline in itertools.product(tenants, pipelines):
        await running.until_at(pipeline, tenant, await last_sequence(running, tenant))


async def test_rows_are_put_back_as_they_were_and_none_is_there_twice(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replay, "CHUNK", 12)
    for tenant in ("acme", "globex"):
        await running.tenant(tenant)
        await running.publish(tenant, [*map(order, range(20)), b"no event", *map(order, range(20, 30))])
    async with running.pipelines(app):
        for tenant in ("acme", "globex"):
            await running.until_at("warehouse", tenant, 31)
        before, others = running.rows("acme"), open_table(running, "globex").version()
        table = open_table(running)
        table.update({"data": "'{}'"}, predicate="sequence = 5")
        table.delete("sequence >= 18 and sequence < 25")
        assert running.rows("acme") != before
        for _ in range(2):
            done = await do(running, "replay", "warehouse", from_sequence=3)
            assert (done.state, done.problem, done.done, done.total) == ("done", "", 29, 29)
            assert running.rows("acme") == before
        await running.publish("acme", map(order, range(30, 40)))
        await running.until_at("warehouse", "acme", 41)
    assert sequences(running) == [*range(1, 21), *range(22, 42)]
    assert open_table(running, "globex").version() == others


async def test_events_that_come_in_meanwhile_are_neither_lost_nor_doubled(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replay, "CHUNK", 200)
    monkeypatch.setattr(replay, "SHARE", 1.0)
    tiers, pipelines = {"acme": "stream", "pooly": "pooled"}, ("warehouse", "orders")
    for tenant, tier in tiers.items():
        await running.tenant(tenant, tier)
        await running.publish(tenant, map(order, range(300)))
    async with running.pipelines(app):
        await until_all_read(running, tiers, pipelines)
        count, is_over = 300, asyncio.Event()

        async def publish() -> None:
            nonlocal count
            while not is_over.is_set():
                for tenant in tiers:
                    await running.publish(tenant, map(order, range(count, count + 3)))
                count += 3
                await asyncio.sleep(0.3)

        publishing = asyncio.create_task(publish())
        jobs = [
            await ask(running, "replay", pipeline, tenant, from_sequence=1)
            for tenant in tiers
            for pipeline in pipelines
        ]
        for job in jobs:
            assert (await until_ended(running, job)).problem == ""
        is_over.set()
        await publishing
        await until_all_read(running, tiers, pipelines)
    assert count > 300
    for tenant in tiers:
        ids = [row["id"] for row in running.rows(tenant)]
        assert len(ids) >= 300
        assert ids == [f"event-{number}" for number in range(len(ids))]
        assert [row["id"] for row in running.rows(tenant, "orders")] == ids


async def test_a_pipeline_whose_code_was_changed_fills_its_table_again(running: Running) -> None:
    await running.tenant("acme")
    await running.publish("acme", map(order, range(10)))
    async with running.pipelines(app):
        for pipeline in ("warehouse", "orders"):
            await running.until_at(pipeline, "acme", 10)
    await expire(running, "acme", 4)
    async with running.pipelines(priced()):
        done = await do(running, "replay", "orders", **{"from": "2026-01-01"})
        assert (done.state, done.total) == ("done", 10)
    rows = running.rows("acme", "orders")
    assert [row["price"] for row in rows] == [2.0 * (number + 1) for number in range(10)]
    assert [row["sequence"] for row in rows] == list(range(1, 11))


async def test_rows_whose_events_are_gone_stay(running: Running) -> None:
    await running.tenant("acme")
    await running.publish("acme", map(order, range(10)))
    async with running.pipelines():
        await running.until_at("warehouse", "acme", 10)
        before = running.rows("acme")
        await expire(running, "acme", 6)
        assert (await do(running, "replay", "warehouse", from_sequence=1)).state == "done"
    assert running.rows("acme") == before


async def test_only_what_came_in_between_two_times_is_replayed(running: Running) -> None:
    await running.tenant("acme")
    await running.publish("acme", map(order, range(5)))
    middle = datetime.now(UTC)
    await running.publish("acme", map(order, range(5, 10)))
    async with running.pipelines():
        await running.until_at("warehouse", "acme", 10)
        open_table(running).update({"id": "'changed'"})
        done = await do(running, "replay", "warehouse", **{"from": middle.isoformat()})
        assert done.total == 5
        assert [row["id"] for row in running.rows("acme")][4:6] == ["changed", "event-5"]
        done = await do(running, "replay", "warehouse", **{"from": "2026-01-01", "to": middle.isoformat()})
        assert done.total == 5
        assert [row["id"] for row in running.rows("acme")] == [f"event-{number}" for number in range(10)]


async def test_a_replay_that_was_broken_off_is_carried_on(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replay, "CHUNK", 2)
    await running.tenant("acme")
    await running.publish("acme", map(order, range(24)))
    desk = JobDesk(running.administration)
    async with running.pipelines():
        await running.until_at("warehouse", "acme", 24)
        open_table(running).update({"id": "'changed'"})
        job = await ask(running, "replay", "warehouse", from_sequence=1)

        async def is_under_way() -> bool:
            return (await desk.get(str(job.id))).done >= 4

        await running.until(is_under_way, "the replay should be under way")
    left = await desk.get(str(job.id))
    assert left.state == "running"
    assert left.done < 24
    async with running.pipelines():
        assert (await until_ended(running, job)).state == "done"
    assert [row["id"] for row in running.rows("acme")] == [f"event-{number}" for number in range(24)]


async def test_what_is_cancelled_ends_and_what_was_replayed_stays(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replay, "CHUNK", 1)
    await running.tenant("acme")
    await running.publish("acme", map(order, range(200)))
    desk = JobDesk(running.administration)
    async with running.pipelines():
        await running.until_at("warehouse", "acme", 200)
        job = await ask(running, "replay", "warehouse", from_sequence=1)

        async def is_under_way() -> bool:
            return (await desk.get(str(job.id))).done > 0

        await running.until(is_under_way, "the replay should be under way")
        await desk.cancel(str(job.id), "test")
        ended = await until_ended(running, job)
        assert ended.state == "cancelled"
        assert ended.done < 200
    assert sequences(running) == list(range(1, 201))


async def test_what_cannot_be_replayed_is_refused(running: Running) -> None:
    changed = Tenantry("shop")
    changed.projection("customers", key="data.customer")(lambda state, event: state)
    changed.pipeline(table="nameless")(lambda events: events.select("tenant", "id"))
    changed.pipeline(table="sums", stateful=True)(lambda events: events.select("tenant", "id"))
    await running.tenant("acme")
    await running.publish("acme", map(order, range(3)))
    async with running.pipelines(changed):
        for pipeline, words in (
            ("customers", "tenantry projection rebuild customers"),
            ("sums", "keeps state"),
            ("nameless", "keep the column sequence"),
        ):
            await running.until_at(pipeline, "acme", 3)
            refused: Any = await do(running, "replay", pipeline, from_sequence=1)
            assert refused.state == "failed"
            assert words in refused.problem
