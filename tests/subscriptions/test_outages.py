"""The database is away, a consumer is deleted, a stream is missing: what can go on does, and the rest comes later."""

from __future__ import annotations

import pytest

from tenantry.application import Context, Event, Tenantry
from tenantry.errors import SubscriptionConflict
from tenantry.nats.connections import Broker
from tenantry.subscriptions.keeper import NOT_OPENED
from tenantry.testing import TestPlatform
from tests.databases import without_database
from tests.subscriptions.working import Seen, Working, until


async def test_handlers_go_on_without_the_database_and_dead_letters_are_written_when_it_is_back(
    platform: TestPlatform, working: Working, signals: list[tuple[str, dict[str, object]]]
) -> None:
    await working.tenant("acme")
    await working.tenant("globex")
    app, seen = Tenantry("shop"), Seen()

    @app.subscriber("orders", retries=0)
    async def handle(event: Event[int], context: Context) -> None:
        if event.tenant == "acme" and event.data == 3:
            raise ValueError("not this one")
        seen.add(event, context)

    lanes = {name: await working.administration.lanes.resolve(name, "events") for name in ("acme", "globex")}
    url = str(working.administration.pool.conninfo)
    async with working.worker(app):
        await working.publish("globex", 1)
        await until(lambda: seen.count == 1)
        async with without_database(platform.postgres.address("postgres", "postgres"), url):
            await working.publish("globex", 20, lane=lanes["globex"])
            await working.publish("acme", 5, lane=lanes["acme"])
            await until(lambda: len(seen.numbers["globex"]) == 21)
            await until(lambda: any(name == "subscriptions.dead_letter_unwritten" for name, _ in signals))
            # It cannot be written down, so nothing passes it.
            assert seen.numbers["acme"] == [1, 2]
        await until(lambda: len(seen.numbers["acme"]) == 4)
    assert seen.numbers["acme"] == [1, 2, 4, 5]
    assert [row[0] for row in await working.rows("select sequence from tenantry.dead_letters")] == [3]


async def test_a_consumer_that_somebody_deletes_is_made_again(working: Working) -> None:
    await working.tenant("acme")
    await working.publish("acme", 3)
    app, seen = Tenantry("shop"), Seen()
    app.subscriber("orders")(seen)
    async with working.worker(app):
        await until(lambda: seen.count == 3)
        lane = await working.administration.lanes.resolve("acme", "events")
        await working.administration.backbone.platform.delete_consumer(lane.stream, "orders")
        await working.publish("acme", 2)
        # A new one begins with the first event: whoever deleted it gave up how far it was.
        await until(lambda: seen.count == 8)
    assert seen.numbers["acme"] == [1, 2, 3, 1, 2, 3, 4, 5]


async def test_a_tenant_whose_stream_is_missing_harms_no_other(
    working: Working, signals: list[tuple[str, dict[str, object]]]
) -> None:
    await working.tenant("acme")
    await working.tenant("globex")
    lane = await working.administration.lanes.resolve("acme", "events")
    await working.administration.backbone.platform.delete_stream(lane.stream)
    app, seen = Tenantry("shop"), Seen()
    app.subscriber("orders")(seen)
    async with working.worker(app):
        await working.publish("globex", 10)
        await until(lambda: len(seen.numbers["globex"]) == 10)
        told = [fields for name, fields in signals if name == NOT_OPENED.name]
        assert {fields["tenant"] for fields in told} == {"acme"}
        await working.administration.provisioner.converge("acme", again=True)
        await working.publish("acme", 3)
        await until(lambda: len(seen.numbers["acme"]) == 3)


async def test_another_applications_service_of_the_same_name_is_refused(working: Working) -> None:
    await working.tenant("acme")
    one, other = Tenantry("shop"), Tenantry("billing")
    one.subscriber("orders")(Seen())
    other.subscriber("orders")(Seen())
    async with working.worker(one):
        worker = working.make_worker(other)
        with pytest.raises(SubscriptionConflict, match="application shop has workers for a service orders"):
            await worker.start()
        await worker.stop()


async def test_a_consumer_of_somebody_else_that_does_not_fit_is_named_and_left_alone(
    working: Working, account: Broker, signals: list[tuple[str, dict[str, object]]]
) -> None:
    await working.tenant("acme")
    lane = await working.administration.lanes.resolve("acme", "events")
    jetstream = working.administration.backbone.platform
    theirs = {"name": "orders", "durable_name": "orders", "ack_policy": "explicit", "max_ack_pending": 7}
    await jetstream.create_consumer(lane.stream, theirs)
    app = Tenantry("shop")
    app.subscriber("orders")(Seen())
    async with working.worker(app):
        await until(lambda: any(name == NOT_OPENED.name for name, _ in signals))
    reason = next(str(fields["reason"]) for name, fields in signals if name == NOT_OPENED.name)
    assert "somebody else made the consumer orders on stream" in reason
    assert "expected its max_ack_pending to be 1, got: 7" in reason
    found = await jetstream.consumer(lane.stream, "orders")
    assert found is not None
    assert found["config"]["max_ack_pending"] == 7
