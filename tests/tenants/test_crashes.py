"""Killed at every step, whoever looks next finishes: a tenant is complete, or it is gone."""

from __future__ import annotations

import asyncio
import itertools
import secrets
from collections.abc import AsyncIterator

import pytest

import nats_bulk
from nats_bulk import Message
from tenantry.nats.connections import connect_bulk
from tenantry.postgres.migrations import ensure_schema
from tenantry.tenants.administration import Administration
from tenantry.tenants.lanes import Lane
from tenantry.tenants.reconciler import Reconciler
from tenantry.tenants.spec import TenantSpec
from tenantry.tenants.tenant import Tier
from tenantry.testing import TestPlatform
from tests.tenants.doomed import Place, die_at

EVENTS = 50


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
async def survivor(place: Place) -> AsyncIterator[Administration]:
    """Somebody who looks after the same tenants and was not killed."""
    async with place.open() as administration:
        yield administration


def publish(lane: Lane, ids: range) -> nats_bulk.PublishResult:
    with connect_bulk(lane.broker, "test") as connection:
        messages = [Message(f"{lane.prefix}.order", str(id).encode(), lane.message_id(str(id))) for id in ids]
        result = nats_bulk.publish(connection, messages)
        result.raise_for_errors()
        return result


def read(lane: Lane, last: int) -> list[tuple[int, int]]:
    """Sequence and number of each event of the lane."""
    with connect_bulk(lane.broker, "test") as connection:
        return [
            (sequence, int(payload))
            for batch in nats_bulk.read_range(connection, lane.stream, 1, last)
            for sequence, subject, payload in zip(batch.sequences, batch.subjects, batch.payloads, strict=True)
            if subject.startswith(lane.prefix + ".")
        ]


@pytest.mark.parametrize("tier", list(Tier))
async def test_a_tenant_is_complete_however_often_its_creation_was_killed(
    place: Place, survivor: Administration, tier: Tier
) -> None:
    for step in itertools.count():
        tenant = f"acme-{step}"
        was_killed = await asyncio.to_thread(die_at, place, step, "create", (tenant, tier.value))
        found = await survivor.registry.get(tenant)
        assert found.is_ready != was_killed
        await Reconciler(survivor).finish_all()
        assert (await survivor.registry.get(tenant)).is_ready
        publish(await survivor.lanes.resolve(tenant, "events"), range(3))
        publish(await survivor.lanes.resolve(tenant, "properties"), range(3))
        await survivor.credentials.issue(tenant, "test")
        if not was_killed:
            break
    assert step >= 4
    assert await survivor.drift.find() == []
    await survivor.audit.verify()


@pytest.mark.parametrize("tier", list(Tier))
async def test_a_tenant_is_gone_however_often_its_deletion_was_killed(
    place: Place, survivor: Administration, tier: Tier
) -> None:
    for step in itertools.count():
        tenant = f"acme-{step}"
        created, _ = await survivor.put(TenantSpec(id=tenant, tier=tier), "test")
        publish(await survivor.lanes.resolve(tenant, "events"), range(3))
        was_killed = await asyncio.to_thread(die_at, place, step, "delete", (tenant,))
        assert (await survivor.registry.find(tenant) is not None) == was_killed
        await Reconciler(survivor).finish_all()
        still_there = await survivor.registry.find(tenant)
        assert still_there is None, still_there.problem
        assert await survivor.backbone.accounts.lookup(survivor.lanes.account_key(created).public) is None
        (erased,) = [
            each for each in await survivor.audit.newest() if each.act == "tenant.erased" and each.tenant_id == tenant
        ]
        assert erased.after is not None
        if not was_killed:
            break
    assert step >= 4
    assert await survivor.drift.find() == []
    left = [stream["state"]["messages"] async for stream in survivor.backbone.platform.streams()]
    assert sum(left) == 0
    assert tier == Tier.POOLED or left == []


@pytest.mark.parametrize(("tier", "to"), [("pooled", "stream"), ("pooled", "account"), ("stream", "account")])
async def test_a_move_arrives_however_often_it_was_killed(
    place: Place, survivor: Administration, tier: str, to: str
) -> None:
    for step in itertools.count():
        tenant = f"acme-{step}"
        await survivor.put(TenantSpec(id=tenant, tier=tier), "test")
        lane = await survivor.lanes.resolve(tenant, "events")
        sequences = publish(lane, range(EVENTS)).sequences
        was_killed = await asyncio.to_thread(die_at, place, step, "move", (tenant, to))
        await Reconciler(survivor).finish_all()
        found = await survivor.registry.get(tenant)
        assert found.tier == to
        assert found.is_ready
        lane = await survivor.lanes.resolve(tenant, "events")
        # What was published before keeps its sequence, is not taken twice, and what comes now comes after it.
        again = publish(lane, range(EVENTS + 10))
        assert again.duplicates == set(range(EVENTS))
        expected = list(zip([*sequences, *again.sequences[EVENTS:]], range(EVENTS + 10), strict=True))
        assert read(lane, again.sequences[-1]) == expected
        if not was_killed:
            break
    assert step >= 8
    assert await survivor.drift.find() == []
    streams = [stream async for stream in survivor.backbone.platform.streams()]
    assert all(stream["state"]["messages"] == 0 for stream in streams if stream["config"]["name"].startswith("POOL_"))
    if to == "account":
        assert not [stream for stream in streams if stream["config"]["name"].startswith("TENANT_")]
    await survivor.audit.verify()
