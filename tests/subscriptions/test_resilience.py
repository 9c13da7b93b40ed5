"""What goes wrong in passing: it costs time at most, never an event or its place."""

from __future__ import annotations

import asyncio
import json
import threading
from collections import Counter
from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest

from nats_bulk import Credentials
from tenantry.application import Context, Event, Tenantry
from tenantry.errors import BrokerError, SubscriptionConflict
from tenantry.nats.feed import Answer, Feed
from tenantry.subscriptions.handling import NotNow
from tenantry.subscriptions.holding import Holding
from tenantry.subscriptions.services import Services
from tenantry.subscriptions.spreading import Partition
from tenantry.subscriptions.worker import Worker
from tests.subscriptions.test_replay import ask
from tests.subscriptions.working import Seen, Working, document, until

ORDERS = Partition("orders", "acme", 0)


async def held(worker: Worker, partition: Partition = ORDERS) -> Holding:
    await until(lambda: partition in worker.holdings and worker.holdings[partition].intake is not None)
    return worker.holdings[partition]


async def pause(working: Working, holding: Holding) -> None:
    await working.rows(
        "insert into tenantry.subscription_pauses values ('orders', %s, 'test') returning 1", holding.tenant
    )
    await until(lambda: holding.is_paused and (holding.intake is None or holding.intake.is_hushed))


async def unpause(working: Working, holding: Holding) -> None:
    await working.rows("delete from tenantry.subscription_pauses where tenant_id = %s returning 1", holding.tenant)
    await until(lambda: not holding.is_paused)


async def ask_for_all_letters(working: Working, kind: str) -> UUID:
    ((job,),) = await working.rows(
        "insert into tenantry.subscription_jobs (kind, service, request, asked_by, total) "
        "select %s, 'orders', '{}', 'test', count(*) from tenantry.dead_letters returning id",
        kind,
    )
    await working.rows("update tenantry.dead_letters set job = %s returning 1", job)
    id: UUID = job
    return id


async def letters(working: Working) -> int:
    return len(await working.rows("select 1 from tenantry.dead_letters"))


@pytest.mark.parametrize(
    "poison",
    [
        b'{"specversion":"1.0","id":"x","source":"/s","type":"a","data":' + b"[" * 1500 + b"]" * 1500 + b"}",
        json.dumps({"specversion": "1.0", "id": "a\0b", "source": "/s", "type": "order\0", "data": -1}).encode(),
        b'{"specversion":"1.0","id":"x","source":"/s","type":"a","data_base64":"?"}',
        b"\xff\xfe",
    ],
    ids=["deep", "zero characters", "no base64", "no text"],
)
async def test_whatever_an_event_is_made_of_it_is_buried_and_passed(working: Working, poison: bytes) -> None:
    await working.tenant("acme")
    await working.publish_documents("acme", [poison])
    await working.publish("acme", 1)
    app, seen = Tenantry("shop"), Seen()

    @app.subscriber("orders", retries=0)
    async def handle(event: Event[int], context: Context) -> None:
        if event.data == -1:
            raise ValueError("\0 is none of ours")
        seen.add(event, context)

    async with working.worker(app):
        await until(lambda: seen.count == 1)
    assert await letters(working) == 1


async def test_one_that_is_to_come_back_and_has_left_the_stream_is_not_waited_for(working: Working) -> None:
    await working.tenant("acme")
    await working.publish("acme", 1)
    app, seen, failed = Tenantry("shop"), Seen(), asyncio.Event()

    @app.subscriber("orders", backoff=1.0)
    async def handle(event: Event[int], context: Context) -> None:
        if event.data == 1:
            failed.set()
            raise ValueError("later")
        seen.add(event, context)

    async with working.worker(app):
        await failed.wait()
        lane = await working.administration.lanes.resolve("acme", "events")
        await working.administration.backbone.platform.purge(lane.stream, "")
        await working.publish("acme", 3)
        await until(lambda: seen.count == 3)


async def test_a_replay_that_was_paused_goes_on(working: Working) -> None:
    await working.tenant("acme")
    await working.publish("acme", 20)
    app, live, again, permits = Tenantry("shop"), Seen(), Seen(), asyncio.Semaphore(3)

    @app.subscriber("orders")
    async def handle(event: Event[int], context: Context) -> None:
        if context.is_replay:
            await permits.acquire()
        (again if context.is_replay else live).add(event, context)

    async with working.worker(app) as worker:
        await until(lambda: live.count == 20)
        await ask(working, "replay", from_sequence=1)
        await until(lambda: again.count == 3)
        holding = await held(worker)
        await pause(working, holding)
        permits.release()
        await until(lambda: not holding.running)
        await unpause(working, holding)
        for _ in range(20):
            permits.release()
        await until(lambda: again.count == 20)
    assert again.numbers["acme"] == list(range(1, 21))


async def test_what_was_not_to_be_tried_when_a_pause_began_is_handled_after_it(working: Working) -> None:
    await working.tenant("acme")
    await working.publish("acme", 2)
    app, seen, begun, go = Tenantry("shop"), Seen(), asyncio.Event(), asyncio.Event()

    @app.subscriber("orders")
    async def handle(event: Event[int], context: Context) -> None:
        if not begun.is_set():
            begun.set()
            await go.wait()
            raise NotNow(0.1)
        seen.add(event, context)

    async with working.worker(app) as worker:
        await begun.wait()
        holding = await held(worker)
        await pause(working, holding)
        go.set()
        await until(lambda: not holding.running)
        await unpause(working, holding)
        await until(lambda: seen.count == 2)
    assert seen.numbers == working.published


async def test_in_a_batch_nothing_behind_an_event_that_stops_the_lane_is_handled(working: Working) -> None:
    await working.tenant("acme")
    await working.publish("acme", 2)
    await working.publish_documents("acme", [b"no event"])
    await working.publish("acme", 2)
    app, seen = Tenantry("shop"), Seen()

    @app.subscriber("orders", batch=10, after_last_retry="stop")
    async def handle(events: list[Event[int]], context: Context) -> None:
        for event in events:
            seen.add(event, context)

    async with working.worker(app) as worker:
        holding = await held(worker)
        await until(lambda: holding.stopped_at == 3 and not holding.running)
        assert seen.numbers["acme"] == [1, 2]
        await ask_for_all_letters(working, "discard")
        await until(lambda: seen.count == 4)
    assert seen.numbers["acme"] == [1, 2, 3, 4]


async def test_each_part_that_stops_has_a_letter_of_its_own(working: Working) -> None:
    await working.tenant("acme")
    await working.publish_documents("acme", [b"no event"])
    app, seen = Tenantry("shop"), Seen()
    app.subscriber("orders", partition_by="subject", partitions=4, after_last_retry="stop")(seen)
    async with working.worker(app) as worker:
        await until(lambda: len(worker.holdings) == 4 and all(each.stopped_at for each in worker.holdings.values()))
        assert await letters(working) == 4
        for number in range(12):
            await working.publish("acme", 1, subject=f"subject {number}")
        await ask_for_all_letters(working, "discard")
        await until(lambda: seen.count == 12)


async def test_a_stream_that_was_made_anew_takes_no_dead_letters_place(working: Working) -> None:
    await working.tenant("acme")
    app, seen = Tenantry("shop"), Seen()

    @app.subscriber("orders", retries=0)
    async def handle(event: Event[int], context: Context) -> None:
        seen.add(event, context)
        raise ValueError("whatever it is")

    async with working.worker(app) as worker:
        holding = await held(worker)
        await working.publish("acme", 1)

        async def are(count: int) -> bool:
            return await letters(working) == count

        await until(lambda: are(1))
        jetstream, name = working.administration.backbone.platform, holding.lane.stream
        found = await jetstream.stream(name)
        assert found is not None
        await jetstream.delete_stream(name)
        await jetstream.create_stream(found["config"])
        await working.publish("acme", 1)
        await until(lambda: are(2))


async def test_a_passing_refusal_changes_no_order(working: Working) -> None:
    await working.tenant("acme")
    await working.publish("acme", 1)
    app, seen, begun, go = Tenantry("shop"), Seen(), asyncio.Event(), asyncio.Event()

    @app.subscriber("orders", batch=4)
    async def handle(events: list[Event[int]], context: Context) -> None:
        begun.set()
        await go.wait()
        for event in events:
            seen.add(event, context)

    async with working.worker(app) as worker:
        await begun.wait()
        await working.publish("acme", 2)
        intake = (await held(worker)).intake
        assert intake is not None
        await until(lambda: intake.waiting == 2)
        intake.told(Answer(b"", b"NATS/1.0 503\r\n\r\n"))
        go.set()
        await working.publish("acme", 2)
        await until(lambda: seen.count >= 5)
    assert seen.numbers == working.published


async def test_a_lease_that_lapsed_for_a_moment_changes_no_order(working: Working) -> None:
    await working.tenant("acme")
    await working.publish("acme", 4)
    app, seen, lapsed, workers = Tenantry("shop"), Seen(), asyncio.Event(), list[Worker]()

    @app.subscriber("orders", batch=4, backoff=0.3)
    async def handle(events: list[Event[int]], context: Context) -> None:
        if len(events) > 1:
            raise ValueError("one by one")
        if events[0].data == 1 and not lapsed.is_set():
            lapsed.set()
            # As if the broker had not heard of it for too long; the next heartbeat is heard.
            workers[0]._roll._good_until = 0.0
            raise ValueError("once more")
        for event in events:
            seen.add(event, context)

    async with working.worker(app) as worker:
        workers.append(worker)
        await until(lambda: seen.count >= 4)
    assert list(dict.fromkeys(seen.numbers["acme"])) == [1, 2, 3, 4]


async def test_a_plain_function_that_is_still_at_an_event_is_not_joined_by_another_run(working: Working) -> None:
    await working.tenant("acme")
    await working.publish("acme", 2)
    app, runs, most, running = Tenantry("shop"), Counter[int](), 0, 0
    go = threading.Event()

    @app.subscriber("orders")
    def handle(event: Event[int], context: Context) -> None:
        nonlocal most, running
        running += 1
        most = max(most, running)
        runs[event.data] += 1
        go.wait()
        running -= 1

    async with working.worker(app) as worker:
        await until(lambda: runs[1] == 1)
        worker._roll._good_until = 0.0
        worker._keeper.look_now.set()
        await until(lambda: not worker.holdings or next(iter(worker.holdings.values())).is_closing)
        await until(lambda: worker._roll.is_current)
        go.set()
        await until(lambda: runs[2] == 1)
    assert most == 1


async def test_nothing_is_begun_without_a_lease(working: Working) -> None:
    await working.tenant("acme")
    await working.publish("acme", 40)
    app, leases, workers = Tenantry("shop"), list[bool](), list[Worker]()

    @app.subscriber("orders", order="parallel", max_in_flight=40)
    async def handle(event: Event[int], context: Context) -> None:
        leases.append(workers[0]._roll.is_current)
        if len(leases) == 3:
            workers[0]._roll._good_until = 0.0
        await asyncio.sleep(0)

    async with working.following():
        worker = working.make_worker(app)
        workers.append(worker)
        await worker.start()
        await until(lambda: len(leases) >= 40)
        await worker.stop()
    assert all(leases)


async def test_a_redriven_key_and_a_new_event_of_it_do_not_miss_each_other(working: Working) -> None:
    await working.tenant("acme")
    app, seen, broken = Tenantry("shop"), Seen(), asyncio.Event()
    broken.set()

    @app.subscriber("orders", retries=0, after_last_retry="park_key")
    async def handle(event: Event[int], context: Context) -> None:
        if broken.is_set():
            raise ValueError("not yet")
        seen.add(event, context)

    async with working.worker(app) as worker:
        holding = await held(worker)
        await working.publish("acme", 1, subject="key")
        await until(lambda: bool(holding.parked))
        broken.clear()
        store, arrived = worker._keeper._letters, asyncio.Event()
        settle = store.settle

        async def settle_late(letter: Any) -> int:
            left = await settle(letter)
            arrived.set()
            # The database has answered; the worker has not heard it yet.
            await until(lambda: holding.intake is not None and len(holding.running) == 1)
            return left

        store.settle = settle_late  # type: ignore[method-assign]
        await ask_for_all_letters(working, "redrive")
        await arrived.wait()
        await working.publish("acme", 2, subject="key")
        await until(lambda: seen.count == 3)
    assert seen.numbers["acme"] == [1, 2, 3]
    assert await letters(working) == 0


async def test_one_tenants_redrive_does_not_keep_anothers_waiting(working: Working) -> None:
    app, seen = Tenantry("shop"), Seen()
    app.subscriber("orders")(seen)
    for name in ("aaa", "bbb"):
        await working.tenant(name)
    fill = (
        "insert into tenantry.dead_letters (tenant_id, owner_id, channel, service, sequence, subject, payload, reason, "
        "published_at) "
        "select %s, %s, 'events', 'orders', n, 'x', %s, 'r', now() from generate_series(1, %s) n returning 1"
    )
    async with working.worker(app) as worker:
        paused = await held(worker, Partition("orders", "aaa", 0))
        await held(worker, Partition("orders", "bbb", 0))
        await pause(working, paused)
        await working.rows(fill, "aaa", "aaa", document("aaa", 1), 600)
        await working.rows(fill, "bbb", "bbb", document("bbb", 1), 1)
        await ask_for_all_letters(working, "redrive")
        await until(lambda: len(seen.numbers["bbb"]) == 1)


@pytest.mark.parametrize("how", ["pause", "handover"])
async def test_a_batch_in_order_stays_in_order_through_a(working: Working, how: str) -> None:
    await working.tenant("acme")
    app, seen, go = Tenantry("shop"), Seen(), asyncio.Event()

    @app.subscriber("orders", batch=6)
    async def handle(events: list[Event[int]], context: Context) -> None:
        await go.wait()
        for event in events:
            seen.add(event, context)

    async def begin(holding: Holding) -> None:
        """One is being handled, and three wait."""
        go.clear()
        await working.publish("acme", 1)
        await until(lambda: len(holding.running) == 1)
        await working.publish("acme", 3)
        await until(lambda: holding.intake is not None and holding.intake.waiting == 3)

    for number in range(3):
        async with working.worker(app) as worker:
            holding = await held(worker)
            await begin(holding)
            if how == "pause":
                await pause(working, holding)
                go.set()
                await until(lambda holding=holding: not holding.running)  # type: ignore[misc]
                await working.publish("acme", 2)
                await unpause(working, holding)
                await until(lambda number=number: seen.count >= 6 * (number + 1))  # type: ignore[misc]
            else:
                asyncio.get_running_loop().call_later(0.1, go.set)
        if how == "handover":
            await working.publish("acme", 2)
            async with working.worker(app):
                await until(lambda number=number: seen.count >= 6 * (number + 1))  # type: ignore[misc]
    assert seen.numbers == working.published


async def test_a_consumer_that_refuses_is_not_asked_again_at_once(working: Working) -> None:
    await working.tenant("acme")
    app, seen = Tenantry("shop"), Seen()
    app.subscriber("orders")(seen)
    async with working.worker(app) as worker:
        intake = (await held(worker)).intake
        assert intake is not None
        refusals, told = 0, intake.told

        def count(answer: Answer) -> None:
            nonlocal refusals
            refusals += 1
            told(answer)

        intake.told = count  # type: ignore[method-assign]
        state = await intake.jetstream.consumer(intake.stream, intake.consumer)
        assert state is not None
        await intake.jetstream.create_consumer(intake.stream, state["config"] | {"max_batch": 10}, "update")
        intake._wanted = 0
        intake.pull()
        await until(lambda: refusals >= 2)
        assert refusals < 10


async def test_credentials_that_are_none_are_told_and_waited_for_no_longer_than_asked(working: Working) -> None:
    broker = replace(working.administration.lanes.platform, credentials=Credentials(jwt="none", seed="SUAAAA"))
    feed = Feed(broker, "test")
    try:
        async with asyncio.timeout(10):
            with pytest.raises(BrokerError):
                await feed.request("$JS.API.INFO", b"", 1.0)
    finally:
        await feed.close()


async def test_an_application_that_is_refused_changes_nothing_of_the_others_service(working: Working) -> None:
    services = Services(working.administration.pool)
    one, other = Tenantry("shop"), Tenantry("billing")
    one.subscriber("orders", partition_by="subject", partitions=8)(Seen())
    other.subscriber("orders", order="parallel", channel="properties")(Seen())
    await services.register("shop", one.subscribers["orders"])
    with pytest.raises(SubscriptionConflict):
        await services.register("billing", other.subscribers["orders"])
    rows = await working.rows("select app, channel, handling_order, parts from tenantry.subscriptions")
    assert rows == [("shop", "events", "fifo", 8)]


async def test_a_worker_that_stops_while_it_takes_something_takes_nothing(working: Working) -> None:
    await working.tenant("acme")
    await working.publish("acme", 5)
    app, seen, asked = Tenantry("shop"), Seen(), asyncio.Event()
    app.subscriber("orders", after_last_retry="stop")(seen)
    async with working.following():
        worker = working.make_worker(app)
        store = worker._keeper._letters
        blocked = store.blocked

        async def take_long(partitions: Any) -> Any:
            asked.set()
            await asyncio.sleep(0.5)
            return await blocked(partitions)

        store.blocked = take_long  # type: ignore[method-assign]
        await worker.start()
        await asked.wait()
        await worker.stop()
        assert not worker.holdings
        assert seen.count == 0
        async with working.worker(app):
            await until(lambda: seen.count == 5)
