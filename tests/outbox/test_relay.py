"""What the relay does with what is emitted, on the real servers."""

from __future__ import annotations

import asyncio
from functools import partial
from operator import ne

import pytest

from tenantry.event import decode
from tenantry.outbox import emit
from tenantry.tenants.spec import TenantSpec
from tests.outbox.carrying import Carrying, until

Signals = list[tuple[str, dict[str, object]]]


@pytest.mark.parametrize("tier", ["pooled", "stream", "account"])
async def test_an_emitted_event_arrives_in_the_lane_with_its_id_and_its_trace(carrying: Carrying, tier: str) -> None:
    await carrying.tenant("acme", tier)
    trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    async with carrying.administration.pool.connection() as connection:
        id = await emit(
            connection, "acme", "order.created", {"ä": [1, None]}, traceparent=trace, tracestate="a=1", subject="o/1"
        )
    async with carrying.relay():
        found = await until(lambda: carrying.messages("acme"), bool)
    ((subject, headers, document),) = found
    assert subject.endswith(".tenants.acme.events.order.created")
    assert headers == {"Nats-Msg-Id": [f"acme/{id}"], "traceparent": [trace], "tracestate": ["a=1"]}
    assert document["data"] == {"ä": [1, None]}
    assert (document["tenantid"], document["traceparent"], document["subject"]) == ("acme", trace, "o/1")


async def test_what_is_sent_is_a_valid_event(carrying: Carrying) -> None:
    await carrying.tenant("acme")
    await carrying.emit("acme", 1)
    async with carrying.relay():
        await carrying.until_arrived("acme", 1)
    ((document,),) = await carrying.ask("select document from tenantry.outbox")
    assert decode(document.encode()).id == "1"


async def test_channels_of_a_tenant_are_lanes_of_their_own(carrying: Carrying) -> None:
    await carrying.tenant("acme")
    await carrying.emit("acme", *range(100))
    await carrying.emit("acme", *range(100, 150), channel="properties")
    async with carrying.relay():
        await carrying.until_arrived("acme", *range(100))
        await carrying.until_arrived("acme", *range(100, 150), channel="properties")


async def test_events_that_come_while_the_relay_runs_are_published_in_order(carrying: Carrying) -> None:
    for name in ("a", "b", "c"):
        await carrying.tenant(name)
    async with carrying.relay():
        for number in range(60):
            for name in ("a", "b", "c"):
                await carrying.emit(name, number)
        for name in ("a", "b", "c"):
            await carrying.until_arrived(name, *range(60))


async def test_the_state_of_each_event_can_be_seen(carrying: Carrying) -> None:
    await carrying.tenant("acme")
    await carrying.emit("acme", 1, 2)
    assert await carrying.states("acme") == [("1", "pending", 0, None), ("2", "pending", 0, None)]
    async with carrying.relay():
        await until(lambda: carrying.states("acme"), lambda rows: all(row[1] == "published" for row in rows))
    assert await carrying.states("acme") == [("1", "published", 1, None), ("2", "published", 1, None)]
    rows = await carrying.ask("select created_at, published_at from tenantry.outbox_events")
    assert all(published >= created for created, published in rows)


async def test_an_event_that_is_too_large_goes_to_the_dead_letters_and_the_lane_goes_on(
    carrying: Carrying, signals: Signals
) -> None:
    await carrying.tenant("acme", payload=100_000)
    await carrying.tenant("other")
    await carrying.emit("acme", 1)
    await carrying.emit("acme", 2, size=50_000)
    await carrying.emit("acme", 3)
    await carrying.tenant("acme", payload=10_000)
    async with carrying.relay(outbox_attempts=3):
        await until(lambda: carrying.states("acme"), lambda rows: rows[1][2] >= 1)
        # It is tried again for a while; others do not wait for that, those behind it do.
        await carrying.emit("other", 1)
        await carrying.until_arrived("other", 1)
        await carrying.until_arrived("acme", 1, 3)
        await until(lambda: carrying.states("acme"), lambda rows: rows[2][1] == "published")
    first, second, third = await carrying.states("acme")
    assert (first[1], second[1], third[1]) == ("published", "failed", "published")
    assert second[2] == 3
    assert second[3] is not None
    assert "larger than the 10000 bytes" in second[3]
    ((id, document, reason, traceparent),) = await carrying.ask(
        "select event_id, document, reason, traceparent from tenantry.outbox_dead_letters"
    )
    assert id == "2"
    assert "x" * 50_000 in document
    assert reason == second[3]
    ((alert),) = [fields for name, fields in signals if name == "outbox.dead_letter"]
    assert (alert["tenant"], alert["event_id"], alert["attempts"], alert["traceparent"]) == (
        "acme",
        "2",
        3,
        traceparent,
    )


async def test_a_stream_that_is_gone_costs_its_own_tenant_only(carrying: Carrying) -> None:
    await carrying.tenant("acme")
    await carrying.tenant("other")
    lane = await carrying.administration.lanes.resolve("acme", "events")
    await carrying.administration.backbone.platform.delete_stream(lane.stream)
    await carrying.emit("acme", 1)
    async with carrying.relay(outbox_attempts=2):
        await carrying.emit("other", 1)
        await carrying.until_arrived("other", 1)
        await until(lambda: carrying.states("acme"), lambda rows: rows[0][1] == "failed")
        assert "no stream" in str((await carrying.states("acme"))[0][3])
        await carrying.administration.drift.repair()
        await carrying.emit("acme", 2)
        await carrying.until_arrived("acme", 2)


async def test_a_stream_that_does_not_answer_holds_up_nobody_else_and_gets_nothing_twice(carrying: Carrying) -> None:
    await carrying.tenant("mute")
    await carrying.tenant("other")
    lane = await carrying.administration.lanes.resolve("mute", "events")
    platform = carrying.administration.backbone.platform
    stream = await platform.stream(lane.stream)
    assert stream is not None
    # It stores and does not say so.
    await platform.update_stream(stream["config"] | {"no_ack": True, "duplicate_window": 100_000_000})
    await carrying.emit("mute", 1, 2)
    async with carrying.relay(outbox_attempts=1):
        await until(lambda: carrying.arrived("mute"), bool)
        for number in range(20):
            await carrying.emit("other", number)
            await carrying.until_arrived("other", *range(number + 1))
        assert {row[1] for row in await carrying.states("mute")} == {"pending"}, "the others had to wait for it"
        await until(lambda: carrying.states("mute"), lambda rows: {row[1] for row in rows} == {"published"})
        await carrying.emit("mute", 3)
        await carrying.until_arrived("mute", 1, 2, 3)


async def test_events_of_a_suspended_tenant_wait_until_it_is_resumed(carrying: Carrying) -> None:
    await carrying.tenant("acme")
    await carrying.tenant("other")
    async with carrying.relay():
        await carrying.administration.suspend("acme", "test")
        await carrying.roster.refresh()
        await carrying.emit("acme", 1)
        await carrying.emit("other", 1)
        await carrying.until_arrived("other", 1)
        assert (await carrying.states("acme"))[0][1] == "pending"
        await carrying.administration.resume("acme", "test")
        await carrying.until_arrived("acme", 1)


async def test_a_tenant_is_held_to_its_rate_and_others_are_not(carrying: Carrying) -> None:
    await carrying.tenant("slow", publish_rate=1, publish_burst=5)
    await carrying.tenant("fast")
    await carrying.emit("slow", *range(1000))
    await carrying.emit("fast", *range(1000))
    began = asyncio.get_running_loop().time()
    async with carrying.relay():
        await carrying.until_arrived("fast", *range(1000))
        arrived = len(await carrying.arrived("slow"))
        assert 5 <= arrived <= 6 + asyncio.get_running_loop().time() - began
        await carrying.tenant("slow", publish_rate=100_000, publish_burst=100_000)
        await carrying.until_arrived("slow", *range(1000))


async def test_the_rate_is_remembered_from_one_relay_to_the_next(carrying: Carrying) -> None:
    await carrying.tenant("slow", publish_rate=1, publish_burst=5)
    await carrying.emit("slow", *range(1000))
    began = asyncio.get_running_loop().time()
    for _ in range(3):
        before = await carrying.arrived("slow")
        async with carrying.relay():
            await until(lambda: carrying.arrived("slow"), partial(ne, before))
    assert len(await carrying.arrived("slow")) <= 7 + asyncio.get_running_loop().time() - began


async def test_a_tenant_that_moves_loses_and_reorders_nothing(carrying: Carrying) -> None:
    await carrying.tenant("acme", "pooled")
    emitted = 0
    async with carrying.relay():
        for tier in ("stream", "account"):
            moving = asyncio.create_task(carrying.administration.move("acme", tier, "test"))
            while not moving.done():
                await carrying.emit("acme", *range(emitted, emitted + 50))
                emitted += 50
                await asyncio.sleep(0.01)
            await moving
            await carrying.emit("acme", *range(emitted, emitted + 50))
            emitted += 50
            await carrying.until_arrived("acme", *range(emitted))


async def test_a_full_stream_that_takes_nothing_new_gets_nothing_out_of_order(carrying: Carrying) -> None:
    # Small events would still fit where a large one does not.
    await carrying.tenant("acme", storage=200_000, discard="new", payload=100_000)
    for number in range(30):
        await carrying.emit("acme", number, size=30_000 if number % 2 else 10)
    async with carrying.relay(outbox_attempts=100):
        await until(lambda: carrying.ask("select max(attempts) from tenantry.outbox_cursors"), lambda rows: rows[0][0])
        stored = [int(id) for id in await carrying.arrived("acme")]
        assert stored == list(range(len(stored)))
        assert len(stored) < 30
        await carrying.administration.put(
            TenantSpec(id="acme", overrides={"storage": 10_000_000, "discard": "new"}), "test"
        )
        await carrying.until_arrived("acme", *range(30))


async def test_a_slow_transaction_holds_back_its_own_lane_only(carrying: Carrying) -> None:
    await carrying.tenant("slow")
    await carrying.tenant("quick")
    with carrying.connect() as connection:
        emit(connection, "slow", "order.created", id="0")
        async with carrying.relay():
            await carrying.emit("slow", 1)
            await carrying.emit("quick", 1)
            await carrying.until_arrived("quick", 1)
            assert await carrying.arrived("slow") == []
            connection.commit()
            await carrying.until_arrived("slow", 0, 1)


async def test_a_relay_that_loses_its_database_connections_goes_on(carrying: Carrying, signals: Signals) -> None:
    await carrying.tenant("acme")
    async with carrying.relay():
        await carrying.emit("acme", 1)
        await carrying.until_arrived("acme", 1)
        for end in (1, 2):
            await carrying.ask(
                """select pg_terminate_backend(pid) from pg_stat_activity
                   where datname = current_database() and application_name like 'tenantry-relay%%'"""
            )
            await carrying.emit("acme", end + 1)
            await carrying.until_arrived("acme", *range(1, end + 2))
    assert any(name == "outbox.database_lost" for name, _ in signals)


async def test_what_a_deleted_tenant_had_emitted_is_gone(carrying: Carrying) -> None:
    await carrying.tenant("acme")
    await carrying.tenant("other")
    await carrying.emit("acme", 1)
    await carrying.emit("other", 1)
    await carrying.administration.delete("acme", "test")
    assert await carrying.ask("select tenant_id from tenantry.outbox_events") == [("other",)]
    assert await carrying.ask("select tenant_id from tenantry.outbox_turns") == [("other",)]
    assert await carrying.ask("select count(*) from tenantry.outbox") == [(1,)]


async def test_a_tenant_can_be_deleted_while_a_relay_carries_for_it(carrying: Carrying) -> None:
    await carrying.tenant("acme")
    await carrying.tenant("other")
    async with carrying.relay():
        for number in range(5):
            await carrying.emit("acme", *range(number * 4000, (number + 1) * 4000))
        await until(lambda: carrying.arrived("acme"), bool)
        await carrying.administration.delete("acme", "test")
        await carrying.emit("other", 1)
        await carrying.until_arrived("other", 1)
    assert await carrying.ask("select distinct tenant_id from tenantry.outbox_events") == [("other",)]


async def test_a_tenant_that_was_made_again_gets_nothing_of_the_one_before(carrying: Carrying) -> None:
    await carrying.tenant("acme")
    with carrying.connect() as connection:
        # It emits to the old one, and commits when there is a new one.
        emit(connection, "acme", "order.created", id="old")
        await carrying.administration.delete("acme", "test")
        await carrying.tenant("acme")
        connection.commit()
    await carrying.emit("acme", 1)
    async with carrying.relay():
        await carrying.until_arrived("acme", 1)
