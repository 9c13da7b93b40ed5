"""A broker that is there and does not answer, a clock that is wrong, ids that are hard to recognise."""

from __future__ import annotations

import asyncio
from pathlib import Path

import psycopg

from tenantry.outbox import emit
from tenantry.outbox.inspector import Inspector
from tenantry.tenants.spec import TenantSpec
from tenantry.testing import TestPlatform
from tests.outbox.carrying import Carrying, until
from tests.outbox.relays import NO_LIMIT, place_of, stored
from tests.own_server import OwnServer
from tests.processes import wait_for


async def test_a_broker_that_stands_still_is_noticed_and_costs_no_attempts(
    own_nats: OwnServer, platform: TestPlatform, tmp_path: Path
) -> None:
    async with place_of(own_nats, platform, tmp_path) as place:
        await place.administration.put(TenantSpec(id="acme", overrides=NO_LIMIT), "test")
        lane = await place.administration.lanes.resolve("acme", "events")
        relay = place.start_relay()
        await asyncio.to_thread(relay.until_ready)
        with psycopg.connect(place.database_url, autocommit=True) as connection:
            emit(connection, "acme", "order.created", id="before")
            await asyncio.to_thread(place.until_all_is_published)
            with own_nats.frozen():
                for number in range(5):
                    emit(connection, "acme", "order.created", id=str(number))
                await asyncio.to_thread(wait_for, lambda: "outbox.broker_unreachable" in relay.output)
            await asyncio.to_thread(place.until_all_is_published)
            attempts = connection.execute("select max(attempts) from tenantry.outbox_events").fetchone()
        assert attempts == (1,)
        assert [id for id, _ in stored(own_nats.address, lane)] == [
            "acme/before",
            *(f"acme/{number}" for number in range(5)),
        ]


async def test_a_row_from_a_clock_that_was_ahead_is_not_passed_by(carrying: Carrying) -> None:
    await carrying.tenant("acme")
    await carrying.emit("acme", 1)
    await carrying.ask("update tenantry.outbox_other set created_at = now() + interval '2 hours' returning 1")
    await carrying.emit("acme", 2)
    async with carrying.relay():
        await carrying.until_arrived("acme", 1, 2)


async def test_an_id_is_recognised_with_the_blanks_at_its_end(carrying: Carrying) -> None:
    await carrying.tenant("acme")
    async with carrying.administration.pool.connection() as connection:
        await emit(connection, "acme", "order.created", id="x ")
    async with carrying.relay():
        await until(lambda: carrying.arrived("acme"), bool)
    lane = await carrying.administration.lanes.resolve("acme", "events")
    ((created,),) = await carrying.ask("select created_at from tenantry.outbox")
    inspector = Inspector()
    try:
        assert await asyncio.to_thread(inspector.stored, lane, 0, created) == ({"acme/x "}, 1)
    finally:
        inspector.close()


async def test_a_channel_that_is_being_removed_keeps_no_relay_busy(
    carrying: Carrying, signals: list[tuple[str, dict[str, object]]]
) -> None:
    await carrying.tenant("acme")
    await carrying.tenant("other")
    await carrying.emit("acme", 1)
    await carrying.ask("update tenantry.channels set removing = true where tenant_id = 'acme' returning 1")
    async with carrying.relay():
        await carrying.emit("other", 1)
        await carrying.until_arrived("other", 1)
        before = len(signals)
        for number in range(2, 12):
            await carrying.emit("other", number)
            await carrying.until_arrived("other", *range(1, number + 1))
        releases = [fields for name, fields in signals[before:] if fields.get("step") == "release"]
    # One for each event of the other, and a few for good measure.
    assert len(releases) <= 30
