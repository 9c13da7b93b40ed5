"""Services as people see them, pause them and forget them."""

from __future__ import annotations

import pytest

from tenantry.errors import TenantNotFound
from tenantry.nats.connections import connect
from tenantry.nats.jetstream import JetStream
from tenantry.subscriptions.job_desk import SubscriptionJobDesk
from tenantry.subscriptions.subscription_desk import SubscriptionDesk
from tenantry.tenants.administration import Administration
from tenantry.tenants.lanes import Lane
from tenantry.tenants.spec import TenantSpec
from tests.subscriptions.letters import Letters


@pytest.fixture
def desk(administration: Administration) -> SubscriptionDesk:
    return SubscriptionDesk(administration)


async def consume(lane: Lane, service: str, *, events: int = 0, taken: int = 0, acked: int = 0) -> None:
    """A worker that has the lane: events come in, some are handed out, and some of those done."""
    name = lane.consumer_name(service)
    async with connect(lane.broker, "worker") as client:
        jetstream = client.jetstream()
        for _ in range(events):
            await jetstream.publish(f"{lane.prefix}.order.created", b"{}")
        config = {"name": name, "durable_name": name, "ack_policy": "explicit", "filter_subject": lane.subjects}
        await JetStream(client).create_consumer(lane.stream, config)
        if taken:
            pulled = await jetstream.pull_subscribe_bind(name, lane.stream)
            for message in (await pulled.fetch(taken))[:acked]:
                await message.ack_sync()


async def consumers(lane: Lane) -> list[str]:
    async with connect(lane.broker, "worker") as client:
        return sorted([each["name"] async for each in JetStream(client).consumers(lane.stream)])


async def test_services_are_listed_with_whom_they_are_paused_for(desk: SubscriptionDesk, letters: Letters) -> None:
    letters.serve("mails", channel="orders", parts=4)
    letters.bury("acme")
    letters.bury("globex")
    await desk.pause("invoices", "acme", "cli:ada")
    await desk.pause("invoices", "globex", "cli:ada")
    invoices, mails = await desk.all()
    assert (invoices.service, invoices.channel, invoices.parts, invoices.dead_letters) == ("invoices", "events", 1, 2)
    assert [(each.tenant_id, each.paused_by) for each in invoices.pauses] == [
        ("acme", "cli:ada"),
        ("globex", "cli:ada"),
    ]
    assert (mails.service, mails.parts, mails.pauses, mails.dead_letters) == ("mails", 4, [], 0)
    own = await desk.get("invoices", "acme")
    assert ([each.tenant_id for each in own.pauses], own.dead_letters) == (["acme"], 1)
    with pytest.raises(TenantNotFound, match="no worker has served 'nothing' yet"):
        await desk.get("nothing")


async def test_a_pause_is_for_one_tenant_until_it_is_resumed_and_each_is_on_record_once(
    desk: SubscriptionDesk, letters: Letters, administration: Administration
) -> None:
    assert await desk.pause("invoices", "acme", "cli:ada")
    assert not await desk.pause("invoices", "acme", "cli:bob")
    ((pause,),) = [each.pauses for each in await desk.all()]
    assert (pause.tenant_id, pause.paused_by) == ("acme", "cli:ada")
    assert not await desk.resume("invoices", "globex", "cli:bob")
    assert await desk.resume("invoices", "acme", "cli:bob")
    assert [each.pauses for each in await desk.all()] == [[]]
    newest = await administration.audit.newest(2)
    assert [(each.actor, each.act, each.tenant_id) for each in newest] == [
        ("cli:bob", "subscription.resume", "acme"),
        ("cli:ada", "subscription.pause", "acme"),
    ]
    for act in (desk.pause, desk.resume):
        with pytest.raises(TenantNotFound, match="nothing"):
            await act("nothing", "acme", "test")
        with pytest.raises(TenantNotFound, match="nobody"):
            await act("invoices", "nobody", "test")


async def test_lag_is_what_the_consumers_of_each_lane_say(
    desk: SubscriptionDesk, letters: Letters, administration: Administration
) -> None:
    await administration.put(TenantSpec(id="own", tier="account"), "test")
    letters.serve("mails", parts=2)
    letters.serve("orders", channel="orders")
    lanes = {name: await administration.lanes.resolve(name, "events") for name in ("acme", "own")}
    await consume(lanes["own"], "invoices", events=5, taken=3, acked=1)
    await consume(lanes["own"], "mails~1")
    await consume(lanes["acme"], "invoices")
    first, *rest = await desk.lag(tenant="own")
    assert (first.service, first.part, first.pending, first.ack_floor, first.last_sequence) == ("mails", 1, 5, 0, 5)
    found = {(lag.service, lag.part): lag for lag in rest}
    assert set(found) == {("invoices", 0), ("mails", 0)}
    invoices = found["invoices", 0]
    assert (invoices.pending, invoices.in_flight, invoices.redelivered, invoices.ack_floor) == (2, 2, 0, 1)
    # Nobody has had it yet.
    assert (found["mails", 0].pending, found["mails", 0].last_sequence) == (None, 5)
    everybody = await desk.lag(service="invoices")
    assert [(lag.tenant_id, lag.pending, lag.last_sequence) for lag in everybody] == [
        ("own", 2, 5),
        ("acme", 0, 0),
        ("globex", None, 0),
    ]
    assert await desk.lag("orders") == []
    with pytest.raises(TenantNotFound, match="nothing"):
        await desk.lag("nothing")
    with pytest.raises(TenantNotFound, match="nobody"):
        await desk.lag(tenant="nobody")


async def test_a_service_is_forgotten_on_all_lanes_and_others_stay(
    desk: SubscriptionDesk, letters: Letters, administration: Administration
) -> None:
    await administration.put(TenantSpec(id="own", tier="account"), "test")
    letters.serve("invoices2")
    lanes = [await administration.lanes.resolve(name, "events") for name in ("acme", "globex", "own")]
    for lane in lanes:
        # Once it had parts.
        for service in ("invoices", "invoices~3", "invoices2"):
            await consume(lane, service)
    letters.bury("acme")
    kept = letters.bury("acme", "invoices2")
    await desk.pause("invoices", "acme", "test")
    jobs = SubscriptionJobDesk(administration)
    job = await jobs.ask("replay", "invoices", "acme", "test", from_sequence=1)
    forgotten = await desk.forget("invoices", "cli:ada")
    assert (forgotten.consumers, forgotten.pauses, forgotten.dead_letters) == (6, 1, 1)
    assert [each.service for each in await desk.all()] == ["invoices2"]
    assert letters.left() == [kept]
    shared, own = await consumers(lanes[0]), await consumers(lanes[2])
    assert shared == ["acme_events_invoices2", "globex_events_invoices2"]
    assert own == ["invoices2"]
    assert (await jobs.get(str(job.id))).state == "cancelled"
    (entry,) = await administration.audit.newest(1)
    assert (entry.actor, entry.act, entry.tenant_id) == ("cli:ada", "subscription.forget", None)
    with pytest.raises(TenantNotFound):
        await desk.forget("invoices", "test")


async def test_an_act_does_not_depend_on_whether_workers_can_be_told(
    desk: SubscriptionDesk, letters: Letters, administration: Administration
) -> None:
    await administration.backbone._client.close()
    assert await desk.pause("invoices", "acme", "test")
