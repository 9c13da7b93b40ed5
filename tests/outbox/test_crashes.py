"""A relay is killed at each of its steps; the next one publishes what is left, and nothing twice."""

from __future__ import annotations

import asyncio
import itertools
import json
import secrets
from collections.abc import AsyncIterator
from datetime import timedelta

import pytest

import nats_bulk
from nats_bulk import Message
from tenantry.nats.connections import connect_bulk
from tenantry.outbox import inspector
from tenantry.postgres.migrations import ensure_schema
from tenantry.tenants.lanes import Lane
from tenantry.tenants.tenant import Tier
from tenantry.testing import TestPlatform
from tests.outbox.carrying import Carrying, until
from tests.outbox.doomed import UNFINISHED, AtStep, Unrecorded, carry_until
from tests.tenants.doomed import Place

SHORTEST_WINDOW = 1
SHORTEST_POOL_WINDOW = 100_000_000
pytestmark = pytest.mark.xdist_group("deaths of relays")


@pytest.fixture
async def place(platform: TestPlatform) -> AsyncIterator[Place]:
    async with platform.account() as broker, platform.database() as database_url:
        await ensure_schema(database_url, may_migrate=True)
        yield Place(
            broker.url,
            broker.credentials,
            platform.nats.system.credentials,
            platform.nats.identity.operator_signing.seed,
            database_url,
            secrets.token_hex(16),
        )


@pytest.fixture
async def survivor(place: Place) -> AsyncIterator[Carrying]:
    """Who carries for the same tenants, and was not killed."""
    async with place.open() as administration:
        yield Carrying(administration)


async def finish(survivor: Carrying) -> None:
    """Let a relay publish what there is, to the end."""
    async with survivor.relay():
        await until(lambda: survivor.ask(UNFINISHED), lambda unfinished: not unfinished)


async def die_unrecorded(place: Place, survivor: Carrying, tenant: str, numbers: range) -> None:
    """A relay publishes events, and dies before it has written down that the last of them are."""
    already = await survivor.arrived(tenant)
    await survivor.emit(tenant, *numbers)
    lane = await survivor.administration.lanes.resolve(tenant, "events")
    assert await asyncio.to_thread(carry_until, place, Unrecorded(lane, len(already) + len(numbers)))
    assert await survivor.arrived(tenant) == already + names(numbers)
    assert (await survivor.states(tenant))[-1][:2] == (str(numbers[-1]), "pending")


def names(numbers: range) -> list[str]:
    return [str(number) for number in numbers]


async def pooled_streams_forget_soon(survivor: Carrying) -> None:
    """The window of a shared stream is nobody's to choose."""
    platform = survivor.administration.backbone.platform
    async for stream in platform.streams():
        if stream["config"]["name"].startswith("POOL_"):
            await platform.update_stream(stream["config"] | {"duplicate_window": SHORTEST_POOL_WINDOW})


async def until_ids_are_forgotten(lane: Lane) -> None:
    """Until the stream would store once more whatever it has now."""

    def store_probe_twice() -> None:
        probe = Message(f"{lane.prefix}.probe", b"", f"probe-{secrets.token_hex(8)}")
        with connect_bulk(lane.broker, "test") as connection:
            nats_bulk.publish(connection, [probe]).raise_for_errors()
            while nats_bulk.publish(connection, [probe]).duplicates:
                pass
            purge = json.dumps({"filter": probe.subject}).encode()
            assert json.loads(connection.request(f"$JS.API.STREAM.PURGE.{lane.stream}", purge))["purged"] == 2

    await asyncio.to_thread(store_probe_twice)


async def publish_directly(lane: Lane, ids: list[str]) -> None:
    """As the HTTP ingest does, past the outbox."""

    def publish() -> None:
        with connect_bulk(lane.broker, "test") as connection:
            messages = [
                Message(f"{lane.prefix}.order.created", json.dumps({"id": id}).encode(), lane.message_id(id))
                for id in ids
            ]
            nats_bulk.publish(connection, messages).raise_for_errors()

    await asyncio.to_thread(publish)


async def test_every_event_is_in_its_lane_once_and_in_order_at_whichever_step_a_relay_was_killed(
    place: Place, survivor: Carrying
) -> None:
    tiers = {"p": "pooled", "q": "pooled", "s": "stream", "u": "stream", "a": "account"}
    for tenant, tier in tiers.items():
        await survivor.tenant(tenant, tier, batch=5)
    for step in itertools.count():
        for tenant in tiers:
            await survivor.emit(tenant, *range(step * 12, (step + 1) * 12))
        was_killed = await asyncio.to_thread(carry_until, place, AtStep(step))
        await finish(survivor)
        for tenant in tiers:
            assert await survivor.arrived(tenant) == names(range((step + 1) * 12)), f"killed at step {step}"
        if not was_killed:
            break
    assert step >= 8


@pytest.mark.parametrize("tier", list(Tier))
async def test_what_was_acknowledged_but_not_recorded_is_not_published_again_after_the_duplicate_window(
    place: Place, survivor: Carrying, tier: Tier
) -> None:
    await survivor.tenant("acme", tier, duplicate_window=SHORTEST_WINDOW)
    await pooled_streams_forget_soon(survivor)
    await die_unrecorded(place, survivor, "acme", range(40))
    await until_ids_are_forgotten(await survivor.administration.lanes.resolve("acme", "events"))
    await survivor.emit("acme", 40)
    await finish(survivor)
    assert await survivor.arrived("acme") == names(range(41))


@pytest.mark.parametrize("tier", list(Tier))
async def test_what_was_not_recorded_is_found_among_thousands_of_other_events(
    place: Place, survivor: Carrying, tier: Tier, monkeypatch: pytest.MonkeyPatch
) -> None:
    # So that of the thousands before it none have to be read.
    monkeypatch.setattr(inspector, "CLOCK_SKEW", timedelta(0))
    for tenant in ("acme", "other"):
        await survivor.tenant(tenant, tier, duplicate_window=SHORTEST_WINDOW)
    await pooled_streams_forget_soon(survivor)
    lane = await survivor.administration.lanes.resolve("acme", "events")
    neighbour = await survivor.administration.lanes.resolve("other", "events")
    before, after = ([f"{when}-{number}" for number in range(2 * inspector.FEW)] for when in ("before", "after"))
    await publish_directly(lane, before)
    await die_unrecorded(place, survivor, "acme", range(1))
    await publish_directly(lane, after)
    await publish_directly(neighbour, after)
    await until_ids_are_forgotten(lane)
    await survivor.emit("acme", 1)
    await finish(survivor)
    assert await survivor.arrived("acme") == [*before, "0", *after, "1"]
    assert await survivor.arrived("other") == after


@pytest.mark.parametrize(("tier", "to"), [("pooled", "stream"), ("stream", "account")])
async def test_what_was_not_recorded_is_not_published_again_where_the_lane_has_moved_to(
    place: Place, survivor: Carrying, tier: str, to: str
) -> None:
    await survivor.tenant("acme", tier, duplicate_window=SHORTEST_WINDOW)
    await die_unrecorded(place, survivor, "acme", range(40))
    await survivor.administration.move("acme", to, "test")
    await until_ids_are_forgotten(await survivor.administration.lanes.resolve("acme", "events"))
    await survivor.emit("acme", 40)
    await finish(survivor)
    assert await survivor.arrived("acme") == names(range(41))


async def test_a_stream_that_was_made_again_is_asked_from_its_beginning(place: Place, survivor: Carrying) -> None:
    await survivor.tenant("acme", duplicate_window=SHORTEST_WINDOW)
    await survivor.emit("acme", *range(100))
    await finish(survivor)
    lane = await survivor.administration.lanes.resolve("acme", "events")
    await survivor.administration.backbone.platform.delete_stream(lane.stream)
    await survivor.administration.drift.repair()
    await die_unrecorded(place, survivor, "acme", range(100, 140))
    await until_ids_are_forgotten(lane)
    await finish(survivor)
    assert await survivor.arrived("acme") == names(range(100, 140))
