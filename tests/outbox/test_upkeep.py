"""Partitions come and go while events are emitted, and none goes with an event that is still to be published."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from itertools import pairwise
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from tenantry.outbox import emit, emit_many
from tenantry.outbox.upkeep import Upkeep
from tenantry.testing import TestPlatform
from tests.outbox.carrying import Carrying, until

Signals = list[tuple[str, dict[str, Any]]]

SECOND = timedelta(seconds=1)
HOUR = timedelta(hours=1)
NEVER = 1_000_000
MANY_LANES = 20
"""More than a transaction holds back one by one."""


def upkeep_of(carrying: Carrying, *, keep: int = 0, stall_seconds: int = NEVER, length: timedelta = SECOND) -> Upkeep:
    return Upkeep(carrying.url, keep=keep, stall_seconds=stall_seconds, length=length, clock_slack=timedelta(0))


@pytest.fixture
async def upkeep(carrying: Carrying) -> Upkeep:
    """Partitions of a second, of which nothing is kept once it is published."""
    upkeep = upkeep_of(carrying)
    await upkeep.work()
    return upkeep


@asynccontextmanager
async def working(upkeep: Upkeep) -> AsyncIterator[None]:
    """It works without a pause."""

    async def work() -> None:
        while True:
            await upkeep.work()

    task = asyncio.create_task(work())
    try:
        yield
        assert not task.done(), task
    finally:
        task.cancel()
        await asyncio.wait([task])


async def partitions(carrying: Carrying) -> dict[str, tuple[Any, Any]]:
    """From when to when each is, in their order."""
    rows = await carrying.ask("select name, starts_at, ends_at from tenantry.outbox_partitions order by starts_at")
    return {name: (starts_at, ends_at) for name, starts_at, ends_at in rows}


async def place_of(carrying: Carrying, id: int) -> str | None:
    """The partition that an event is in."""
    rows = await carrying.ask("select tableoid::regclass::text from tenantry.outbox where event_id = %s", str(id))
    return str(rows[0][0]).removeprefix("tenantry.") if rows else None


async def pass_by(carrying: Carrying, partition: str | None) -> None:
    """Wait until nothing more comes into a partition."""
    question = "select clock_timestamp() > ends_at from tenantry.outbox_partitions where name = %s"
    await until(lambda: carrying.ask(question, partition), lambda rows: rows == [(True,)])


async def close(carrying: Carrying, partition: str | None) -> None:
    """Let it be on record that nothing more comes into a partition."""
    await pass_by(carrying, partition)
    await upkeep_of(carrying, keep=NEVER).work()


async def until_published(carrying: Carrying, tenant: str) -> None:
    await until(lambda: carrying.states(tenant), lambda rows: all(row[1] == "published" for row in rows))


async def until_dropped(carrying: Carrying, upkeep: Upkeep, partition: str | None) -> None:
    async def work() -> bool:
        await upkeep.work()
        return partition in await partitions(carrying)

    await until(work, lambda is_there: not is_there)


async def until_told(signals: Signals, name: str, times: int = 1) -> None:
    async def told() -> list[str]:
        return [each for each, _ in signals if each == name]

    await until(told, lambda names: len(names) >= times)


async def test_partitions_are_made_ahead_without_a_gap(carrying: Carrying, upkeep: Upkeep) -> None:
    await carrying.tenant("acme")
    first = await partitions(carrying)
    assert len(first) >= 6
    await carrying.emit("acme", 1)
    assert await place_of(carrying, 1) in first
    await pass_by(carrying, list(first)[1])
    await upkeep.work()
    now = await partitions(carrying)
    assert list(now)[: len(first) - 2] != list(first), "nothing was made"
    spans = list(now.values())
    assert all(before[1] == after[0] for before, after in pairwise(spans))
    ((last_is_ahead,),) = await carrying.ask("select %s > clock_timestamp() + interval '3 seconds'", spans[-1][1])
    assert last_is_ahead


async def test_published_events_leave_with_their_partition_and_so_does_when_they_were_published(
    carrying: Carrying, upkeep: Upkeep, signals: Signals
) -> None:
    await carrying.tenant("acme")
    async with carrying.relay():
        await carrying.emit("acme", 1)
        place = await place_of(carrying, 1)
        await until_published(carrying, "acme")
        await close(carrying, place)
        assert [row[1] for row in await carrying.states("acme")] == ["published"], "it was to be kept"
        await until_dropped(carrying, upkeep, place)
        async with working(upkeep):
            # It may have been published when the next one had begun.
            await until(lambda: carrying.ask("select from tenantry.outbox_batches"), lambda batches: not batches)
    assert await carrying.ask("select from tenantry.outbox") == []
    assert await carrying.ask("select to_regclass(%s)", f"tenantry.{place}") == [(None,)]
    assert place in [fields["partition"] for name, fields in signals if name == "outbox.partition_dropped"]


async def test_what_a_suspended_tenant_has_to_publish_keeps_its_partition_and_none_before_it(
    carrying: Carrying, upkeep: Upkeep
) -> None:
    await carrying.tenant("acme")
    await carrying.emit("acme", 1)
    first = await place_of(carrying, 1)
    async with carrying.relay():
        await carrying.until_arrived("acme", 1)
        await until_published(carrying, "acme")
        await carrying.administration.suspend("acme", "test")
        await carrying.roster.refresh()
        await close(carrying, first)
        await carrying.emit("acme", 2)
        second = await place_of(carrying, 2)
        await pass_by(carrying, second)
        await until_dropped(carrying, upkeep, first)
        assert await place_of(carrying, 2) == second
        await carrying.administration.resume("acme", "test")
        await carrying.until_arrived("acme", 1, 2)
        await until_published(carrying, "acme")
        await until_dropped(carrying, upkeep, second)


async def test_an_event_that_is_tried_again_keeps_its_partition(carrying: Carrying, upkeep: Upkeep) -> None:
    await carrying.tenant("acme")
    lane = await carrying.administration.lanes.resolve("acme", "events")
    await carrying.administration.backbone.platform.delete_stream(lane.stream)
    await carrying.emit("acme", 1)
    place = await place_of(carrying, 1)
    async with carrying.relay(outbox_attempts=100):
        await until(lambda: carrying.states("acme"), lambda rows: rows[0][2] > 0)
        await pass_by(carrying, place)
        await upkeep.work()
        assert await place_of(carrying, 1) == place
        await carrying.administration.drift.repair()
        await carrying.until_arrived("acme", 1)
        await until_published(carrying, "acme")
        await until_dropped(carrying, upkeep, place)


@pytest.mark.parametrize("lanes", [1, MANY_LANES])
async def test_an_open_transaction_keeps_what_it_has_emitted(carrying: Carrying, upkeep: Upkeep, lanes: int) -> None:
    names = [f"t{number}" for number in range(lanes)]
    for name in ("quick", *names):
        await carrying.tenant(name, "pooled")
    with carrying.connect() as connection:
        await upkeep.work()
        emit_many(connection, [{"tenant": name, "type": "order.created", "id": name} for name in names])
        await carrying.emit("quick", 1)
        place = await place_of(carrying, 1)
        await close(carrying, place)
        connection.commit()
    async with carrying.relay():
        for name in names:
            await carrying.emit(name, 2)
            await until_published(carrying, name)
            assert await carrying.arrived(name) == [name, "2"]
        await until_published(carrying, "quick")
        await until_dropped(carrying, upkeep, place)


async def test_a_lane_that_is_always_written_to_lets_go_of_what_it_has_published(
    carrying: Carrying, upkeep: Upkeep
) -> None:
    await carrying.tenant("busy", "pooled")
    with carrying.connect() as first, carrying.connect() as second:
        emit(first, "busy", "order.created", id="1")
        await carrying.emit("busy", 2)
        place = await place_of(carrying, 2)
        await close(carrying, place)
        emit(second, "busy", "order.created", id="3")
        first.commit()
        async with carrying.relay():
            await carrying.until_arrived("busy", 1, 2)
            await until_published(carrying, "busy")
        await upkeep.work()
        ends_at = (await partitions(carrying))[str(place)][1]
        assert await carrying.ask("select from tenantry.outbox_cursors where starts_at < %s", ends_at) == []


async def test_events_without_a_partition_are_published_stay_where_they_are_and_leave_when_they_are_old(
    carrying: Carrying,
) -> None:
    await carrying.tenant("acme")
    await carrying.tenant("late")
    await carrying.emit("acme", 1)
    await carrying.emit("late", 2)
    await carrying.administration.suspend("late", "test")
    patient, impatient = upkeep_of(carrying, keep=NEVER, length=HOUR), upkeep_of(carrying, length=HOUR)
    await patient.work()
    async with carrying.relay():
        await carrying.until_arrived("acme", 1)
        await until_published(carrying, "acme")
        await patient.work()
        assert await place_of(carrying, 1) == "outbox_other"
        await impatient.work()
        assert await place_of(carrying, 1) is None
        assert await place_of(carrying, 2) == "outbox_other", "it was still to be published"
        await carrying.administration.resume("late", "test")
        await carrying.until_arrived("late", 2)
        await until_published(carrying, "late")
        await impatient.work()
        assert await place_of(carrying, 2) is None


async def test_no_partition_is_made_where_events_are_already_without_one(carrying: Carrying) -> None:
    await carrying.tenant("acme")
    await carrying.emit("acme", 1)
    upkeep = upkeep_of(carrying, keep=NEVER, length=HOUR)
    await upkeep.work()
    await upkeep.work()
    ((created_at,),) = await carrying.ask("select created_at from tenantry.outbox")
    made = (await partitions(carrying)).values()
    assert len(made) == 6
    assert all(not starts_at <= created_at < ends_at for starts_at, ends_at in made)
    await carrying.emit("acme", 2)
    assert await place_of(carrying, 2) == "outbox_other"
    async with carrying.relay():
        await carrying.until_arrived("acme", 1, 2)


async def test_an_open_transaction_delays_a_drop_and_nobody_who_emits(
    carrying: Carrying, upkeep: Upkeep, signals: Signals
) -> None:
    await carrying.tenant("acme")
    await carrying.tenant("slow")
    await carrying.emit("acme", 1)
    place = await place_of(carrying, 1)
    async with carrying.relay():
        await until_published(carrying, "acme")
        await close(carrying, place)
        with carrying.connect() as connection:
            emit(connection, "slow", "order.created", id="1")
            async with working(upkeep):
                await until_told(signals, "outbox.partition_busy")
                for number in range(2, 12):
                    await carrying.emit("acme", number)
                await carrying.until_arrived("acme", *range(1, 12))
                assert place in await partitions(carrying)
                connection.commit()
                await until(lambda: partitions(carrying), lambda left: place not in left)


async def test_an_open_transaction_delays_new_partitions_and_nothing_else(carrying: Carrying, signals: Signals) -> None:
    await carrying.tenant("acme")
    upkeep = upkeep_of(carrying, stall_seconds=0, length=HOUR)
    with carrying.connect() as connection:
        emit(connection, "acme", "order.created", id="1")
        await upkeep.start()
        assert await partitions(carrying) == {}
        assert [name for name, _ in signals if name in ("outbox.partitions_busy", "outbox.stalled")] == [
            "outbox.partitions_busy",
            "outbox.stalled",
        ]
        await carrying.emit("acme", 2)
        connection.commit()
    await upkeep.work()
    assert len(await partitions(carrying)) == 6


async def test_several_upkeeps_do_not_get_in_each_others_way(carrying: Carrying) -> None:
    await carrying.tenant("acme")
    async with carrying.relay():
        for number in range(5):
            await asyncio.gather(*(upkeep_of(carrying).work() for _ in range(4)))
            await carrying.emit("acme", number)
        await carrying.until_arrived("acme", *range(5))
    spans = list((await partitions(carrying)).values())
    assert all(before[1] <= after[0] for before, after in pairwise(spans))


async def test_one_upkeep_works_at_a_time(carrying: Carrying) -> None:
    with carrying.connect() as connection:
        connection.execute("select pg_advisory_lock(7375, 0)")
        await upkeep_of(carrying).work()
        assert await partitions(carrying) == {}
    await upkeep_of(carrying).work()
    assert await partitions(carrying) != {}


async def test_nothing_is_lost_or_reordered_while_partitions_come_and_go(
    carrying: Carrying, upkeep: Upkeep, signals: Signals
) -> None:
    tenants = ("pooled", "stream", "account")
    for tenant in tenants:
        await carrying.tenant(tenant, tenant)
    await carrying.tenant("slow")
    is_over = asyncio.Event()

    def dropped() -> int:
        return len([name for name, _ in signals if name == "outbox.partition_dropped"])

    async def write(tenant: str) -> int:
        count = 0
        while not is_over.is_set():
            await carrying.emit(tenant, *range(count, count + 7))
            count += 7
            await asyncio.sleep(0.01)
        return count

    async def write_from_one_partition_into_the_next(connection: psycopg.AsyncConnection[Any], number: int) -> None:
        before = dropped()
        await emit(connection, "slow", "order.created", id=str(2 * number))
        cursor = await connection.execute(
            "select min(ends_at) from tenantry.outbox_partitions where ends_at > clock_timestamp()"
        )
        (boundary,) = await cursor.fetchone() or (None,)
        await until(lambda: carrying.ask("select clock_timestamp() > %s", boundary), lambda rows: rows == [(True,)])
        await emit(connection, "slow", "order.created", id=str(2 * number + 1))
        await connection.commit()
        await until_told(signals, "outbox.partition_dropped", before + 1)

    async with carrying.relay(), working(upkeep):
        writing = [asyncio.create_task(write(tenant)) for tenant in tenants]
        async with await psycopg.AsyncConnection.connect(carrying.url) as connection:
            for number in range(4):
                await write_from_one_partition_into_the_next(connection, number)
        is_over.set()
        for tenant, count in zip(tenants, await asyncio.gather(*writing), strict=True):
            await carrying.until_arrived(tenant, *range(count))
        await carrying.until_arrived("slow", *range(8))
        assert dropped() >= 4


async def test_who_holds_events_back_is_named(carrying: Carrying, signals: Signals) -> None:
    await carrying.tenant("acme")

    def stalled() -> list[dict[str, Any]]:
        return [fields for name, fields in signals if name == "outbox.stalled"]

    with psycopg.connect(carrying.url, application_name="importer") as connection:
        emit(connection, "acme", "order.created")
        await upkeep_of(carrying).work()
        assert stalled() == []
        await upkeep_of(carrying, stall_seconds=0).work()
        (fields,) = stalled()
        assert (fields["pid"], fields["application"]) == (connection.info.backend_pid, "importer")
        assert (fields["tenant"], fields["lanes"], fields["user"]) == ("acme", 1, connection.info.user)
        assert 0 < fields["seconds"] < 60
        connection.commit()
    await upkeep_of(carrying, stall_seconds=0).work()
    assert len(stalled()) == 1


async def test_who_holds_events_back_is_named_although_another_role_may_not_look_at_it(
    carrying: Carrying, platform: TestPlatform, signals: Signals
) -> None:
    await carrying.tenant("acme")
    stranger = platform.postgres.address("postgres", "postgres")
    name = conninfo_to_dict(carrying.url)["dbname"]
    with psycopg.connect(stranger, dbname=name, application_name="importer") as connection:
        emit(connection, "acme", "order.created")
        await carrying.emit("acme", 1)
        await upkeep_of(carrying).work()
        await upkeep_of(carrying, stall_seconds=0).work()
        (fields,) = [fields for name, fields in signals if name == "outbox.stalled"]
        assert (fields["pid"], fields["application"]) == (connection.info.backend_pid, "importer")
        assert 0 < fields["seconds"] < 60


@pytest.mark.parametrize("lanes", [1, MANY_LANES])
async def test_a_transaction_that_outlives_its_tenant_leaves_nothing_behind(carrying: Carrying, lanes: int) -> None:
    for number in range(lanes):
        await carrying.tenant(f"t{number}", "pooled")
    await carrying.tenant("last", "pooled")
    upkeep = upkeep_of(carrying, keep=NEVER, length=HOUR)
    await upkeep.work()
    with carrying.connect() as connection:
        names = [f"t{number}" for number in range(lanes)]
        emit_many(connection, [{"tenant": name, "type": "order.created"} for name in [*names, "last"]])
        await carrying.administration.delete("last", "test")
        await upkeep.work()
        connection.commit()
    assert await carrying.ask("select count(*) from tenantry.outbox") == [(lanes + 1,)]
    await upkeep.work()
    assert await carrying.ask("select count(*) from tenantry.outbox") == [(lanes,)]
    assert await carrying.ask("select from tenantry.outbox_erased_lanes") == []
