"""Moving up a tier, under load: all events are there once, in order, with the sequences that they had."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from unittest.mock import patch

import nats.errors
import pytest

import nats_bulk
from nats_bulk import Message
from tenantry import telemetry
from tenantry.errors import BrokerUnreachable, ProvisioningFailed, TenantConflict
from tenantry.nats.connections import Broker, connect, connect_bulk
from tenantry.tenants import mover
from tenantry.tenants.administration import Administration
from tenantry.tenants.crossing import Crossing
from tenantry.tenants.lanes import Lane
from tenantry.tenants.moves import Stage
from tenantry.tenants.provisioner import STEP
from tenantry.tenants.spec import TenantSpec
from tenantry.tenants.tenant import Tenant, Tier
from tests.processes import wait_for
from tests.tenants.test_crashes import publish, read

DURING = 20_000
WAYS = [("pooled", "stream"), ("pooled", "account"), ("stream", "account")]


class Producer(threading.Thread):
    """Publishes numbered events for as long as it is not stopped, the way a relay does.

    What is refused is published again, in order, to whatever lane the tenant has by then; one by one until one is
    taken, for of many on their way the first could be refused and the others taken.
    """

    def __init__(self, administration: Administration, tenant: str) -> None:
        super().__init__()
        self._administration = administration
        self._tenant = tenant
        self._loop = asyncio.get_running_loop()
        self._stopping = threading.Event()
        self.published = 0
        self.refused = 0
        self.sequences: list[int] = []

    def run(self) -> None:
        while not self._stopping.is_set():
            lane = self._resolve()
            with connect_bulk(lane.broker, "producer") as connection:
                at_once = 1
                while not self._stopping.is_set():
                    if not self._publish(connection, lane, range(self.published, self.published + at_once)):
                        break
                    at_once = 250

    def _publish(self, connection: nats_bulk.Connection, lane: Lane, numbers: range) -> bool:
        subject = f"{lane.prefix}.order"
        messages = [Message(subject, str(number).encode(), lane.message_id(str(number))) for number in numbers]
        result = nats_bulk.publish(connection, messages)
        taken = min(result.errors, default=len(messages))
        # The old stream was closed once and for all: nothing behind the first refusal got in.
        assert all(position in result.errors for position in range(taken, len(messages)))
        self.sequences += result.sequences[:taken]
        self.published += taken
        self.refused += len(result.errors)
        return not result.errors

    def _resolve(self) -> Lane:
        lanes = self._administration.lanes
        return asyncio.run_coroutine_threadsafe(lanes.resolve(self._tenant, "events"), self._loop).result(30)

    async def stop(self) -> None:
        self._stopping.set()
        await asyncio.to_thread(self.join)


@asynccontextmanager
async def producing(administration: Administration, tenant: str) -> AsyncIterator[Producer]:
    producer = Producer(administration, tenant)
    producer.start()
    try:
        yield producer
    finally:
        await producer.stop()


def before_step(name: str, act: Callable[[], None]) -> Callable[[], None]:
    """Do something just before a step of the move; the result ends that."""
    return telemetry.subscribe(lambda _, fields: act() if fields["step"].startswith(name) else None, STEP.name)


@pytest.mark.parametrize(("tier", "to"), WAYS)
async def test_all_events_that_are_published_during_a_move_arrive_once_and_in_order(
    administration: Administration, tier: str, to: str
) -> None:
    for tenant in ("acme", "globex"):
        await administration.put(TenantSpec(id=tenant, tier=tier), "test")
    async with producing(administration, "acme") as producer, producing(administration, "globex") as neighbour:
        await asyncio.to_thread(wait_for, lambda: producer.published > 1000)
        begun = producer.published
        # The move waits before the cut until enough was published while it copied.
        end = before_step("close", lambda: wait_for(lambda: producer.published >= begun + DURING))
        # And before the new lane takes events until the producer has met the cut.
        met = before_step("open", lambda: wait_for(lambda: producer.refused > 0))
        move = await administration.move("acme", to, "test")
        end()
        met()
        arrived = producer.published
        await asyncio.to_thread(wait_for, lambda: producer.published >= arrived + 1000)
    assert arrived - begun >= DURING
    # The producer met the cut, and went on behind it.
    assert producer.refused > 0
    assert neighbour.refused == 0
    lane = await administration.lanes.resolve("acme", "events")
    rows = await asyncio.to_thread(read, lane, producer.sequences[-1])
    assert rows == list(zip(producer.sequences, range(producer.published), strict=True))
    (record,) = [each for each in move.lanes if each.channel == "events"]
    assert [number for sequence, number in rows if record.last < sequence < record.resumes_at] == []
    # The new stream knows what the old one had taken.
    assert len(publish(lane, range(producer.published - 500, producer.published)).duplicates) == 500
    assert await administration.drift.find() == []


async def test_a_tenants_own_producer_goes_on_with_the_same_credentials(administration: Administration) -> None:
    await administration.put(TenantSpec(id="acme", tier="stream"), "test")
    _, secret = await administration.credentials.issue("acme", "test", consumer="billing")
    lane = await administration.lanes.resolve("acme", "events")
    stopping = asyncio.Event()
    acknowledged: list[int] = []

    async def produce() -> None:
        async with connect(Broker(lane.broker.url, secret), "producer") as client:
            while not stopping.is_set():
                number = len(acknowledged)
                headers = {"Nats-Msg-Id": str(number)}
                try:
                    answer = await client.request(
                        f"{lane.prefix}.order", str(number).encode(), timeout=0.5, headers=headers
                    )
                except (nats.errors.TimeoutError, nats.errors.NoRespondersError):
                    continue
                assert b"error" not in answer.data
                acknowledged.append(number)

    async def until(count: int) -> None:
        while len(acknowledged) < count:
            await asyncio.sleep(0.005)

    async with asyncio.timeout(60), asyncio.TaskGroup() as group:
        group.create_task(produce())
        await until(100)
        await administration.move("acme", "account", "test")
        await until(len(acknowledged) + 100)
        stopping.set()
    moved = await administration.lanes.resolve("acme", "events")
    assert moved.broker != lane.broker
    async with administration.backbone.jetstream(moved.broker) as jetstream:
        last = await jetstream.last_sequence(moved.stream, moved.subjects)
    assert [number for _, number in await asyncio.to_thread(read, moved, last)] == acknowledged


@pytest.mark.parametrize(("tier", "to"), WAYS)
async def test_consumers_go_on_where_they_were(administration: Administration, tier: str, to: str) -> None:
    await administration.put(TenantSpec(id="acme", tier=tier), "test")
    _, secret = await administration.credentials.issue("acme", "test", consumer="billing")
    before = await administration.lanes.resolve("acme", "events")
    publish(before, range(10))

    async def fetch(lane: Lane, count: int) -> list[int]:
        async with connect(Broker(lane.broker.url, secret), "billing") as client:
            subscription = await client.jetstream().pull_subscribe_bind(
                lane.consumer_name("billing"), lane.stream, durable=lane.consumer_name("billing")
            )
            messages = await subscription.fetch(count, timeout=10)
            for message in messages:
                await message.ack_sync()
            await subscription.unsubscribe()
            return [int(message.data) for message in messages]

    assert await fetch(before, 4) == [0, 1, 2, 3]
    await administration.move("acme", to, "test")
    after = await administration.lanes.resolve("acme", "events")
    publish(after, range(10, 12))
    # The same credentials: they were issued for the lanes to come as well.
    assert await fetch(after, 8) == [4, 5, 6, 7, 8, 9, 10, 11]


async def test_sequences_of_events_that_are_gone_are_not_used_again(administration: Administration) -> None:
    await administration.put(TenantSpec(id="acme", tier="stream"), "test")
    lane = await administration.lanes.resolve("acme", "events")
    publish(lane, range(10))
    async with connect(lane.broker, "test") as client:
        streams = client.jetstream()
        for sequence in (2, 5, 9, 10):
            await streams.delete_msg(lane.stream, sequence)
        other = await administration.lanes.resolve("acme", "properties")
        publish(other, range(10))
        await streams.purge_stream(other.stream)
    move = await administration.move("acme", "account", "test")
    lane = await administration.lanes.resolve("acme", "events")
    (sequence,) = publish(lane, range(10, 11)).sequences
    assert sequence > 10
    assert [row[0] for row in read(lane, sequence)] == [1, 3, 4, 6, 7, 8, sequence]
    (sequence,) = publish(await administration.lanes.resolve("acme", "properties"), range(10, 11)).sequences
    assert sequence > 10
    assert {record.channel: record.last for record in move.lanes} == {"events": 10, "properties": 10}


async def test_a_full_stream_that_refuses_new_events_loses_none_on_its_way(administration: Administration) -> None:
    await administration.put(TenantSpec(id="acme", tier="stream", overrides={"discard": "new", "messages": 20}), "test")
    lane = await administration.lanes.resolve("acme", "events")
    publish(lane, range(20))
    await administration.move("acme", "account", "test")
    lane = await administration.lanes.resolve("acme", "events")
    assert [number for _, number in read(lane, 20)] == list(range(20))
    with pytest.raises(nats_bulk.PublishFailed, match="maximum messages"):
        publish(lane, range(20, 21))


async def test_a_plan_of_a_move_changes_nothing(administration: Administration) -> None:
    await administration.put(TenantSpec(id="acme", tier="stream"), "test")
    (events, properties) = await administration.plan_move("acme", "account")
    assert (events.channel, events.from_stream, events.to_stream) == (
        "events",
        "TENANT_ACME_EVENTS",
        "TENANT_ACME_EVENTS",
    )
    assert properties.channel == "properties"
    assert (await administration.registry.get("acme")).tier == "stream"
    assert await administration.drift.find() == []


async def test_a_tenant_moves_up_and_not_down(administration: Administration) -> None:
    await administration.put(TenantSpec(id="acme", tier="stream"), "test")
    for to in ("pooled", "stream"):
        with pytest.raises(TenantConflict, match="only move up: account"):
            await administration.move("acme", to, "test")


async def test_a_move_can_be_given_up_while_it_copies(administration: Administration) -> None:
    await administration.put(TenantSpec(id="acme", tier="stream"), "test")
    lane = await administration.lanes.resolve("acme", "events")
    publish(lane, range(10))
    giving_up: list[asyncio.Task[Tenant]] = []

    def give_up(channel: str, *_: int) -> None:
        # The copy never seems to be far enough, so only this can end it.
        if not giving_up:
            giving_up.append(asyncio.ensure_future(administration.abandon_move("acme", "test")))

    with patch.object(mover, "CUT_LAG", -(10**9)):
        await administration.move("acme", "account", "test", give_up)
    assert (await giving_up[0]).tier == Tier.STREAM
    found = await administration.moves.newest("acme")
    assert found is not None
    assert found.stage == Stage.ABANDONED
    assert len(publish(lane, range(10)).duplicates) == 10
    assert await administration.drift.find() == []
    with pytest.raises(TenantConflict, match="not being moved"):
        await administration.abandon_move("acme", "test")
    # And another time it arrives.
    await administration.move("acme", "account", "test")
    lane = await administration.lanes.resolve("acme", "events")
    assert [number for _, number in read(lane, 10)] == list(range(10))


async def test_past_the_cut_a_move_cannot_be_given_up_and_nothing_else_comes_in_between(
    administration: Administration,
) -> None:
    await administration.put(TenantSpec(id="acme", tier="stream"), "test")
    acts: list[asyncio.Task[object]] = []

    def try_all() -> None:
        if not acts:
            acts.extend(
                asyncio.ensure_future(act)
                for act in (
                    administration.abandon_move("acme", "test"),
                    administration.delete("acme", "test"),
                    administration.put(TenantSpec(id="acme", name="Another"), "test"),
                    administration.move("acme", "account", "test"),
                )
            )

    end = before_step("close", try_all)
    await administration.move("acme", "account", "test")
    end()
    abandoned, deleted, renamed, moved = await asyncio.gather(*acts, return_exceptions=True)
    assert "past the point" in str(abandoned)
    assert "is being moved" in str(deleted)
    assert "is being moved" in str(renamed)
    assert getattr(moved, "stage", moved) == Stage.DONE


async def test_a_move_whose_origin_is_missing_says_so_and_can_be_given_up(administration: Administration) -> None:
    await administration.put(TenantSpec(id="acme", tier="stream"), "test")
    await administration.backbone.platform.delete_stream("TENANT_ACME_EVENTS")
    with pytest.raises(ProvisioningFailed, match="TENANT_ACME_EVENTS of tenant acme is missing"):
        await administration.move("acme", "account", "test")
    found = await administration.moves.unfinished("acme")
    assert found is not None
    assert "is missing" in found.problem
    # It waits a while before it is tried again.
    assert await administration.registry.unfinished() == []
    await administration.abandon_move("acme", "test")
    await administration.drift.repair()
    await administration.move("acme", "account", "test")
    assert await administration.drift.find() == []


async def test_a_plan_may_change_while_a_move_is_interrupted_behind_the_cut(
    administration: Administration,
) -> None:
    await administration.put(TenantSpec(id="acme", tier="stream"), "test")
    lane = await administration.lanes.resolve("acme", "events")
    publish(lane, range(20))
    interrupted = patch.object(Crossing, "copy_consumers", side_effect=BrokerUnreachable("broken off"))
    with interrupted, pytest.raises(ProvisioningFailed, match="broken off"):
        await administration.move("acme", "account", "test")
    await administration.put_plan("pro", {"storage": "2MiB", "duplicate_window": "60s"}, "test")
    await administration.mover.carry_on("acme")
    move = await administration.moves.newest("acme")
    assert move is not None
    assert move.stage == Stage.DONE
    # What was found out before the interruption is still on record.
    (record,) = [each for each in move.lanes if each.channel == "events"]
    assert (record.last, record.resumes_at) == (20, 41)
    lane = await administration.lanes.resolve("acme", "events")
    assert len(publish(lane, range(21)).duplicates) == 20
    assert await administration.drift.find() == []


@pytest.mark.parametrize("to", ["stream", "account"])
async def test_a_consumer_that_is_ahead_of_its_lane_misses_nothing(administration: Administration, to: str) -> None:
    for tenant in ("acme", "globex"):
        await administration.put(TenantSpec(id=tenant, tier="pooled"), "test")
    lane = await administration.lanes.resolve("acme", "events")
    other = await administration.lanes.resolve("globex", "events")
    publish(lane, range(5))
    publish(other, range(1000))
    # One that begins with what is new, behind a busy neighbour; one that handled all, and then all expired.
    shared = {"filter_subject": lane.subjects, "max_ack_pending": 100}
    late = {"durable_name": lane.consumer_name("late"), "deliver_policy": "new", "ack_policy": "explicit"}
    done = {"durable_name": lane.consumer_name("done"), "deliver_policy": "all", "ack_policy": "all"}
    for config in (late, done):
        await administration.backbone.platform.create_consumer(lane.stream, shared | config)
    async with connect(lane.broker, "test") as client:
        subscription = await client.jetstream().pull_subscribe_bind(
            lane.consumer_name("done"), lane.stream, durable=lane.consumer_name("done")
        )
        await (await subscription.fetch(5, timeout=10))[-1].ack_sync()
    await administration.backbone.platform.purge(lane.stream, lane.subjects)
    await administration.move("acme", to, "test")
    lane = await administration.lanes.resolve("acme", "events")
    publish(lane, range(5, 8))
    async with administration.backbone.jetstream(lane.broker) as jetstream:
        pending = {each["name"]: each["num_pending"] async for each in jetstream.consumers(lane.stream)}
    assert pending == {"late": 3, "done": 3}


async def test_consumers_that_the_account_would_not_allow_are_moved_all_the_same(
    administration: Administration,
) -> None:
    await administration.put(TenantSpec(id="acme", overrides={"consumers": 1, "in_flight": 10}), "test")
    lane = await administration.lanes.resolve("acme", "events")
    for name in ("one", "two"):
        config = {"durable_name": name, "ack_policy": "explicit", "max_ack_pending": 1000}
        await administration.backbone.platform.create_consumer(lane.stream, config)
    await administration.move("acme", "account", "test")
    lane = await administration.lanes.resolve("acme", "events")
    async with administration.backbone.jetstream(lane.broker) as jetstream:
        assert {each["name"] async for each in jetstream.consumers(lane.stream)} == {"one", "two"}


async def test_a_long_gap_at_the_end_of_an_empty_stream_is_not_filled_one_by_one(
    administration: Administration,
) -> None:
    await administration.put(TenantSpec(id="acme", tier="stream"), "test")
    lane = await administration.lanes.resolve("acme", "events")
    # As if ten thousand million events had come and gone.
    config = (await administration.backbone.platform.stream(lane.stream) or {})["config"]
    await administration.backbone.platform.delete_stream(lane.stream)
    await administration.backbone.platform.create_stream(config | {"first_seq": 10**10})
    move = await administration.move("acme", "account", "test")
    (record,) = [each for each in move.lanes if each.channel == "events"]
    assert (record.last, record.resumes_at) == (10**10 - 1, 10**10)
    lane = await administration.lanes.resolve("acme", "events")
    assert publish(lane, range(1)).sequences == [10**10]


async def test_two_channels_of_one_shared_stream_are_moved(administration: Administration) -> None:
    await administration.put(TenantSpec(id="acme", tier="pooled", plan="free"), "test")
    lanes = [await administration.lanes.resolve("acme", channel) for channel in ("events", "properties")]
    assert lanes[0].stream == lanes[1].stream
    for lane in lanes:
        publish(lane, range(5))
    await administration.move("acme", "account", "test")
    for channel in ("events", "properties"):
        lane = await administration.lanes.resolve("acme", channel)
        assert [number for _, number in read(lane, publish(lane, range(6)).sequences[-1])] == list(range(6))


async def test_a_tenant_is_suspended_in_the_middle_of_a_move(administration: Administration) -> None:
    await administration.put(TenantSpec(id="acme", tier="stream"), "test")
    _, secret = await administration.credentials.issue("acme", "test")
    lane = await administration.lanes.resolve("acme", "events")
    suspending: list[asyncio.Task[object]] = []
    end = before_step(
        "copy events", lambda: suspending.append(asyncio.ensure_future(administration.suspend("acme", "test")))
    )
    await administration.move("acme", "account", "test")
    end()
    await suspending[0]
    with pytest.raises(Exception, match=r"(?i)refused|authorization"):
        async with connect(Broker(lane.broker.url, secret), "test"):
            pass
    with pytest.raises(TenantConflict, match="suspended"):
        await administration.lanes.resolve("acme", "events")
    await administration.resume("acme", "test")
    async with connect(Broker(lane.broker.url, secret), "test") as client:
        assert b"seq" in (await client.request(f"{lane.prefix}.order", b"1", timeout=5)).data
