"""The outbox in an application's own database, which knows of tenants what the relay tells it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import psycopg
import pytest

from tenantry.config import Settings
from tenantry.errors import EventInvalid, TenantNotFound
from tenantry.outbox import emit
from tenantry.outbox.following import LaneFollower
from tenantry.outbox.service import RelayService
from tenantry.outbox.upkeep import Upkeep
from tenantry.postgres.migrations import ensure_schema
from tenantry.service import end
from tenantry.tenants.spec import TenantSpec
from tenantry.testing import TestPlatform
from tests.outbox.carrying import NO_LIMIT, Carrying, until
from tests.outbox.own_database import OwnDatabase
from tests.outbox.relays import Place, place_of, stored
from tests.own_server import OwnServer
from tests.processes import run_tenantry, wait_for

BOTH = [("acme", "events"), ("acme", "properties")]


@pytest.fixture
async def own(platform: TestPlatform) -> AsyncIterator[OwnDatabase]:
    """The outbox in it knows nobody yet."""
    async with platform.database() as url:
        await ensure_schema(url, may_migrate=True, outbox_only=True)
        yield OwnDatabase(url)


@pytest.fixture
async def following(carrying: Carrying, own: OwnDatabase) -> AsyncIterator[None]:
    """The outbox follows the registry, as it does beside a relay."""
    follower = LaneFollower(own.url, carrying.roster)
    await carrying.roster.start()
    await follower.start()
    running = [asyncio.create_task(carrying.roster.run()), asyncio.create_task(follower.run())]
    yield
    assert not any(task.done() for task in running)
    await end(running)


@pytest.fixture
async def carried(carrying: Carrying, own: OwnDatabase, following: None) -> AsyncIterator[None]:
    """A relay carries what is emitted there."""
    relay = RelayService(own.url, carrying.roster, carrying.administration.lanes, Settings())
    await relay.start()
    yield
    await relay.stop()


async def lanes_in(own: OwnDatabase) -> list[tuple[str, str]]:
    question = "select tenant_id, channel from tenantry.outbox_lanes order by 1, 2"
    return [(str(tenant), str(channel)) for tenant, channel in ask(own.url, question)]


def ask(url: str, question: str) -> list[tuple[object, ...]]:
    with psycopg.connect(url) as connection:
        return connection.execute(question).fetchall()


def emit_into(url: str, tenant: str, *numbers: int, channel: str = "events", size: int = 0) -> None:
    with psycopg.connect(url) as connection:
        for number in numbers:
            emit(connection, tenant, "order.created", {"x": "x" * size}, id=str(number), channel=channel)


@pytest.mark.usefixtures("following")
async def test_a_new_tenant_can_be_emitted_to(carrying: Carrying, own: OwnDatabase) -> None:
    with pytest.raises(TenantNotFound, match="there is no tenant 'acme'"):
        emit_into(own.url, "acme", 1)
    await carrying.tenant("acme")
    await until(lambda: lanes_in(own), lambda lanes: lanes == BOTH)
    emit_into(own.url, "acme", 1)
    assert own.event().id == "1"


@pytest.mark.usefixtures("following")
async def test_a_new_limit_of_a_tenants_payload_is_followed(carrying: Carrying, own: OwnDatabase) -> None:
    await carrying.tenant("acme", payload=5000)
    await until(lambda: lanes_in(own), lambda lanes: lanes == BOTH)
    emit_into(own.url, "acme", 1, size=4000)
    await carrying.tenant("acme", payload=1000)

    async def limits() -> list[tuple[object, ...]]:
        return ask(own.url, "select distinct payload from tenantry.outbox_lanes")

    await until(limits, lambda rows: rows == [(1000,)])
    with pytest.raises(EventInvalid, match="at most 1000 bytes"):
        emit_into(own.url, "acme", 2, size=4000)


@pytest.mark.usefixtures("following")
async def test_a_channel_that_is_removed_takes_no_more_events_and_those_it_had_are_erased(
    carrying: Carrying, own: OwnDatabase
) -> None:
    await carrying.tenant("acme")
    await until(lambda: lanes_in(own), lambda lanes: lanes == BOTH)
    emit_into(own.url, "acme", 1)
    emit_into(own.url, "acme", 2, channel="properties")
    await carrying.administration.put(TenantSpec(id="acme", without_channels=("properties",)), "test")
    await until(lambda: lanes_in(own), lambda lanes: lanes == BOTH[:1])
    with pytest.raises(TenantNotFound, match="has no channel 'properties'"):
        emit_into(own.url, "acme", 3, channel="properties")
    assert [row["event_id"] for row in own.rows()] == ["1"]


@pytest.mark.usefixtures("following")
async def test_what_a_deleted_tenant_had_emitted_is_erased(carrying: Carrying, own: OwnDatabase) -> None:
    await carrying.tenant("acme")
    await carrying.tenant("other")
    await until(lambda: lanes_in(own), lambda lanes: len(lanes) == 4)
    emit_into(own.url, "acme", 1)
    emit_into(own.url, "other", 2)
    with psycopg.connect(own.url) as connection:
        emit(connection, "acme", "order.created", id="late")
        await carrying.administration.delete("acme", "test")
        await until(lambda: lanes_in(own), lambda lanes: [tenant for tenant, _ in lanes] == ["other", "other"])
        connection.commit()
    await Upkeep(own.url, keep=3600, stall_seconds=3600).work()
    assert ask(own.url, "select event_id from tenantry.outbox") == [("2",)]
    assert ask(own.url, "select tenant_id from tenantry.outbox_turns") == [("other",)]


@pytest.mark.usefixtures("carried")
async def test_what_is_emitted_there_arrives_in_the_lane(carrying: Carrying, own: OwnDatabase) -> None:
    for tier in ("pooled", "stream", "account"):
        await carrying.tenant(tier, tier)
    await until(lambda: lanes_in(own), lambda lanes: len(lanes) == 6)
    for tenant in ("pooled", "stream", "account"):
        emit_into(own.url, tenant, *range(10))
    for tenant in ("pooled", "stream", "account"):
        await carrying.until_arrived(tenant, *range(10))


async def test_while_the_database_is_away_nothing_is_given_up(
    carrying: Carrying, own: OwnDatabase, carried: None, signals: list[tuple[str, dict[str, object]]]
) -> None:
    name = psycopg.conninfo.conninfo_to_dict(own.url)["dbname"]
    await carrying.tenant("acme")
    await until(lambda: lanes_in(own), lambda lanes: lanes == BOTH)
    emit_into(own.url, "acme", 1)
    await carrying.until_arrived("acme", 1)
    with psycopg.connect(carrying.url, autocommit=True) as elsewhere:
        elsewhere.execute(f"alter database {name} allow_connections false")
        elsewhere.execute("select pg_terminate_backend(pid) from pg_stat_activity where datname = %s", [name])
        await carrying.tenant("later")

        async def what_failed() -> set[str]:
            return {signal for signal, _ in signals}

        await until(what_failed, lambda seen: {"outbox.database_lost", "outbox.following_failed"} <= seen)
        elsewhere.execute(f"alter database {name} allow_connections true")
    await until(lambda: lanes_in(own), lambda lanes: len(lanes) == 4)
    emit_into(own.url, "acme", 2)
    emit_into(own.url, "later", 1)
    await carrying.until_arrived("acme", 1, 2)
    await carrying.until_arrived("later", 1)


@pytest.fixture
async def place(own_nats: OwnServer, platform: TestPlatform, own: OwnDatabase, tmp_path: Path) -> AsyncIterator[Place]:
    """Where `tenantry serve relay` looks after that outbox."""
    async with place_of(own_nats, platform, tmp_path) as place:
        place.environment["TENANTRY_OUTBOX_URL"] = own.url
        yield place


async def test_a_relay_process_carries_from_there(place: Place, own: OwnDatabase, own_nats: OwnServer) -> None:
    relay = place.start_relay()
    await asyncio.to_thread(relay.until_ready)
    await place.administration.put(TenantSpec(id="acme", overrides=NO_LIMIT), "test")
    await until(lambda: lanes_in(own), lambda lanes: lanes == BOTH)
    emit_into(own.url, "acme", *range(10))
    lane = await place.administration.lanes.resolve("acme", "events")
    expected = [f"acme/{number}" for number in range(10)]
    await asyncio.to_thread(wait_for, lambda: [id for id, _ in stored(own_nats.address, lane)] == expected)
    assert ask(place.database_url, "select from tenantry.outbox") == []
    await asyncio.to_thread(relay.end)
    assert relay.process.returncode == 0, relay.output


async def test_a_relay_says_what_to_do_if_the_outbox_is_missing_there(place: Place, database: str) -> None:
    environment = place.environment | {"TENANTRY_OUTBOX_URL": database}
    refused = await asyncio.to_thread(run_tenantry, "serve", "relay", env=environment)
    assert refused.returncode == 1
    assert "run `tenantry migrate --outbox-only`" in refused.stdout + refused.stderr
    assert "Traceback" not in refused.stdout + refused.stderr
