"""Tenants from their creation to their erasure, at every tier, on the real servers."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import nats.errors
import nats.js.errors
import pytest
from nats.aio.client import Client

import nats_bulk
from tenantry.config import Settings
from tenantry.errors import (
    BrokerError,
    BudgetExceeded,
    ConfigError,
    TenantConflict,
    TenantInvalid,
    TenantNotFound,
)
from tenantry.nats.connections import Broker, connect
from tenantry.postgres.migrations import ensure_schema
from tenantry.tenants.administration import Administration
from tenantry.tenants.assembly import open_administration
from tenantry.tenants.reconciler import Reconciler
from tenantry.tenants.spec import TenantSpec
from tenantry.tenants.tenant import Status, Tier
from tenantry.testing import TestPlatform
from tests.own_server import OwnServer
from tests.tenants.test_crashes import publish, read

TIERS = pytest.mark.parametrize("tier", list(Tier))
SMALL = {"storage": "1MiB"}
"""A server that was not told otherwise promises no more storage than its disk has."""


async def stream_of(administration: Administration, tenant: str, channel: str = "events") -> dict[str, Any]:
    found = await administration.registry.get(tenant)
    named = found.channel(channel)
    assert named is not None
    lane = administration.lanes.lane(found, named)
    async with administration.backbone.jetstream(lane.broker) as jetstream:
        stream = await jetstream.stream(lane.stream)
    assert stream is not None
    return stream


@TIERS
async def test_a_new_tenant_can_publish_and_read_back_at_once(administration: Administration, tier: Tier) -> None:
    tenant, created = await administration.put(TenantSpec(id="acme", tier=tier), "test")
    assert created
    assert (tenant.is_ready, tenant.plan, tenant.name) == (True, "pro", "acme")
    for channel in ("events", "properties"):
        lane = await administration.lanes.resolve("acme", channel)
        result = publish(lane, range(3))
        assert read(lane, 3) == list(zip(result.sequences, range(3), strict=True))


@pytest.mark.parametrize("tier", ["stream", "account"])
async def test_a_stream_has_the_limits_of_the_plan(administration: Administration, tier: str) -> None:
    overrides = {"storage": "1MiB", "messages": 1000, "payload": "4KiB", "discard": "new", "duplicate_window": "30s"}
    channels = {"events": "7d", "audit": "24h"}
    await administration.put(TenantSpec(id="acme", tier=tier, overrides=overrides, channels=channels), "test")
    events, audit = [(await stream_of(administration, "acme", each))["config"] for each in channels]
    assert events["subjects"] == ["tenantry.tenants.acme.events.>"]
    assert (events["max_age"], audit["max_age"]) == (7 * 86_400 * 10**9, 86_400 * 10**9)
    assert (events["max_bytes"], events["max_msgs"], events["max_msg_size"]) == (1 << 20, 1000, 4096)
    assert (events["discard"], events["duplicate_window"], events["allow_direct"]) == ("new", 30 * 10**9, True)
    # A cluster of one holds one copy, whatever the plan asks for.
    assert events["num_replicas"] == 1


async def test_the_server_holds_an_account_to_the_plan(administration: Administration) -> None:
    overrides = {"storage": "1MiB", "consumers": 2, "in_flight": 10, "connections": 7}
    await administration.put(TenantSpec(id="acme", tier="account", overrides=overrides), "test")
    lane = await administration.lanes.resolve("acme", "events")
    async with connect(lane.broker, "test") as client:
        limits = (await client.jetstream().account_info()).limits
        assert (limits.max_storage, limits.max_streams, limits.max_consumers) == (2 << 20, 2, 2)
        with pytest.raises(nats.js.errors.APIError, match="maximum number of streams"):
            await client.jetstream().add_stream(name="MORE", subjects=["more"], max_bytes=1000)


@TIERS
async def test_putting_a_tenant_again_changes_what_is_said_and_nothing_else(
    administration: Administration, tier: Tier
) -> None:
    first, _ = await administration.put(TenantSpec(id="acme", tier=tier, name="Acme Inc."), "test")
    lane = await administration.lanes.resolve("acme", "events")
    publish(lane, range(3))
    same, created = await administration.put(TenantSpec(id="acme", name="Acme Inc."), "test")
    assert (created, same.revision) == (False, first.revision)
    changed, created = await administration.put(
        TenantSpec(id="acme", plan="enterprise", channels={"billing": None}), "test"
    )
    assert (created, changed.is_ready) == (False, True)
    assert (changed.plan, changed.name, changed.uid) == ("enterprise", "Acme Inc.", first.uid)
    assert {each.name for each in changed.channels} == {"billing", "events", "properties"}
    assert [number for _, number in read(lane, 3)] == [0, 1, 2]
    acts = [entry.act for entry in await administration.audit.newest(tenant="acme")]
    assert acts == ["tenant.change", "tenant.create"]
    assert await administration.drift.find() == []


async def test_retentions_are_overridden_by_channel(administration: Administration) -> None:
    await administration.put(TenantSpec(id="acme", overrides={"retention": {"events": "1d", "audit": "2d"}}), "test")
    changed, _ = await administration.put(
        TenantSpec(id="acme", overrides={"retention": {"events": "3h", "audit": None}}), "test"
    )
    assert changed.overrides == {"retention": {"events": 10_800}}
    changed, _ = await administration.put(TenantSpec(id="acme", overrides={"retention": "5h"}), "test")
    assert changed.overrides == {"retention": {"*": 18_000}}
    changed, _ = await administration.put(TenantSpec(id="acme", overrides={"retention": None}), "test")
    assert changed.overrides == {}


async def test_overrides_are_merged_and_taken_back(administration: Administration) -> None:
    await administration.put(TenantSpec(id="acme", overrides={"storage": "1MiB", "weight": 7}), "test")
    changed, _ = await administration.put(TenantSpec(id="acme", overrides={"storage": None, "batch": 10}), "test")
    assert changed.overrides == {"weight": 7, "batch": 10}
    assert (await stream_of(administration, "acme"))["config"]["max_bytes"] == 10 << 30


@pytest.mark.parametrize("tier", ["stream", "account"])
async def test_limits_grow_and_shrink(administration: Administration, tier: str) -> None:
    await administration.put(TenantSpec(id="acme", tier=tier, overrides={"storage": "10MiB"}), "test")
    publish(await administration.lanes.resolve("acme", "events"), range(1000))
    for storage, size in (("1MiB", 1 << 20), ("16KiB", 1 << 14), ("-1", -1), ("4MiB", 4 << 20)):
        changed, _ = await administration.put(TenantSpec(id="acme", overrides={"storage": storage}), "test")
        assert changed.is_ready, changed.problem
        assert (await stream_of(administration, "acme"))["config"]["max_bytes"] == size
        assert await administration.drift.find() == []


@TIERS
async def test_a_channel_is_added_and_erased(administration: Administration, tier: Tier) -> None:
    await administration.put(TenantSpec(id="acme", tier=tier, channels={"events": None, "audit": "2h"}), "test")
    lane = await administration.lanes.resolve("acme", "audit")
    publish(lane, range(3))
    changed, _ = await administration.put(TenantSpec(id="acme", without_channels=("audit",)), "test")
    assert [each.name for each in changed.channels] == ["events"]
    with pytest.raises(TenantNotFound, match="has no channel 'audit'"):
        await administration.lanes.resolve("acme", "audit")
    async with administration.backbone.jetstream(lane.broker) as jetstream:
        assert await jetstream.last_sequence(lane.stream, lane.subjects) == 0
    with pytest.raises(TenantConflict, match="at least one channel"):
        await administration.put(TenantSpec(id="acme", without_channels=("events",)), "test")


async def test_lanes_of_one_retention_share_a_stream_until_it_is_full(platform: TestPlatform) -> None:
    async with platform.administration(pool_lanes=3) as administration:
        for number in range(5):
            await administration.put(
                TenantSpec(id=f"acme-{number}", tier="pooled", channels={"events": "1d", "rare": "30d"}), "test"
            )
        streams = {
            stream["config"]["name"]: len(stream["config"]["subjects"])
            async for stream in administration.backbone.platform.streams()
        }
        assert sorted(streams.values()) == [2, 2, 3, 3]
        for number in range(5):
            lane = await administration.lanes.resolve(f"acme-{number}", "events")
            publish(lane, range(2))
            last = publish(lane, range(3)).sequences[-1]
            assert [each for _, each in read(lane, last)] == [0, 1, 2]


@TIERS
async def test_a_suspended_tenant_is_cut_off_at_once_and_has_its_data_when_it_is_resumed(
    administration: Administration, tier: Tier
) -> None:
    await administration.put(TenantSpec(id="acme", tier=tier), "test")
    _, secret = await administration.credentials.issue("acme", "test", consumer="billing")
    lane = await administration.lanes.resolve("acme", "events")
    publish(lane, range(3))
    client = Client()
    closed = asyncio.Event()

    async def on_close() -> None:
        closed.set()

    await client.connect(**_options(lane.broker.url, secret), allow_reconnect=False, closed_cb=on_close)
    suspended = await administration.suspend("acme", "test")
    assert (suspended.status, suspended.is_ready) == (Status.SUSPENDED, True)
    await asyncio.wait_for(closed.wait(), 10)
    with pytest.raises(BrokerError, match="refused"):
        async with connect(Broker(lane.broker.url, secret), "test"):
            pass
    with pytest.raises(TenantConflict, match="suspended; resume it first"):
        await administration.lanes.resolve("acme", "events")
    with pytest.raises(TenantConflict, match="suspended; resume it first"):
        await administration.credentials.issue("acme", "test")
    await administration.resume("acme", "test")
    async with connect(Broker(lane.broker.url, secret), "test") as back:
        subscription = await back.jetstream().pull_subscribe_bind(
            lane.consumer_name("billing"), lane.stream, durable=lane.consumer_name("billing")
        )
        assert [int(message.data) for message in await subscription.fetch(3, timeout=10)] == [0, 1, 2]
        await subscription.unsubscribe()


def _options(url: str, secret: nats_bulk.Credentials) -> dict[str, Any]:
    from nats.aio.client import RawCredentials

    from tenantry.nats.claims import format_credentials

    return {"servers": [url], "user_credentials": RawCredentials(format_credentials(secret))}


@TIERS
async def test_a_deleted_tenant_leaves_nothing_but_its_audit_record(administration: Administration, tier: Tier) -> None:
    for tenant in ("acme", "globex"):
        await administration.put(TenantSpec(id=tenant, tier=tier), "test")
        publish(await administration.lanes.resolve(tenant, "events"), range(3))
    created = await administration.registry.get("acme")
    _, secret = await administration.credentials.issue("acme", "test", consumer="billing")
    if tier == Tier.STREAM:
        await administration.move("acme", "account", "test")
    await administration.delete("acme", "test")
    with pytest.raises(TenantNotFound):
        await administration.registry.get("acme")
    account = administration.lanes.account_key(created).public
    assert await administration.backbone.accounts.lookup(account) is None
    with pytest.raises(BrokerError):
        async with connect(Broker(administration.lanes.platform.url, secret), "test"):
            pass
    names = [stream["config"]["name"] async for stream in administration.backbone.platform.streams()]
    assert not [name for name in names if "ACME" in name]
    async for stream in administration.backbone.platform.streams():
        assert not [subject for subject in stream["config"]["subjects"] if ".acme." in subject]
        assert [each async for each in administration.backbone.platform.consumers(stream["config"]["name"])] == []
    async with administration.pool.connection() as connection:
        rows = await connection.execute(
            "select table_name from information_schema.columns where table_schema = 'tenantry' "
            "and column_name = 'tenant_id' and table_name <> 'audit'"
        )
        for (table,) in await rows.fetchall():
            left = await connection.execute(f"select count(*) from tenantry.{table} where tenant_id = 'acme'")
            assert await left.fetchone() == (0,), table
    newest = (await administration.audit.newest(tenant="acme"))[0]
    assert (newest.act, newest.after) == (
        "tenant.erased",
        {"events": 3, "accounts": 1, "consumers": 1, **({} if tier == Tier.POOLED else {"streams": 2})},
    )
    # The neighbour has all it had; the id is free for another tenant, who is another one.
    lane = await administration.lanes.resolve("globex", "events")
    assert [number for _, number in read(lane, publish(lane, range(4)).sequences[-1])] == [0, 1, 2, 3]
    again, _ = await administration.put(TenantSpec(id="acme", tier=tier), "test")
    assert again.uid != created.uid
    assert administration.lanes.account_key(again).public != account


async def test_a_tenant_whose_account_was_forgotten_is_erased_all_the_same(administration: Administration) -> None:
    tenant, _ = await administration.put(TenantSpec(id="acme", tier="account"), "test")
    publish(await administration.lanes.resolve("acme", "events"), range(20))
    account = administration.lanes.account_key(tenant).public
    await administration.backbone.accounts.delete([account])
    await administration.delete("acme", "test")
    assert (await administration.audit.newest(tenant="acme"))[0].after == {"accounts": 1, "events": 20, "streams": 2}


async def test_a_channel_that_is_still_being_erased_is_not_added_again(administration: Administration) -> None:
    await administration.put(TenantSpec(id="acme", channels={"events": None, "audit": None}), "test")
    async with administration.registry.change("acme") as connection:
        await administration.registry.remove_channels(connection, "acme", ["audit"])
        await administration.registry.touch(connection, "acme")
    with pytest.raises(TenantConflict, match="still being erased"):
        await administration.put(TenantSpec(id="acme", channels={"audit": "1d"}), "test")
    # Saying again what is so already finishes what was left.
    found, _ = await administration.put(TenantSpec(id="acme"), "test")
    assert found.is_ready
    await administration.put(TenantSpec(id="acme", channels={"audit": "1d"}), "test")


async def test_a_tenant_has_a_bounded_number_of_channels(administration: Administration) -> None:
    await administration.put(TenantSpec(id="acme", channels={f"c{number}": None for number in range(20)}), "test")
    with pytest.raises(TenantInvalid, match="at most 32 channels, got: 40"):
        await administration.put(TenantSpec(id="acme", channels={f"d{number}": None for number in range(20)}), "test")


async def test_a_plan_that_was_deleted_does_not_come_back(administration: Administration) -> None:
    await administration.delete_plan("free", "test")
    await administration.registry.ship_plans()
    assert [plan.name for plan, _ in await administration.registry.plans()] == ["enterprise", "pro"]


@TIERS
async def test_consumers_of_credentials_follow_the_limits(administration: Administration, tier: Tier) -> None:
    await administration.put(TenantSpec(id="acme", tier=tier), "test")
    await administration.credentials.issue("acme", "test", consumer="billing")
    lane = await administration.lanes.resolve("acme", "events")
    changed, _ = await administration.put(TenantSpec(id="acme", overrides={"in_flight": 10}), "test")
    assert changed.is_ready, changed.problem
    async with administration.backbone.jetstream(lane.broker) as jetstream:
        consumer = await jetstream.consumer(lane.stream, lane.consumer_name("billing"))
    assert consumer is not None
    assert consumer["config"]["max_ack_pending"] == 10


@pytest.mark.parametrize(
    ("spec", "field", "message"),
    [
        (TenantSpec(id="Acme"), "id", "expected tenant to be"),
        (TenantSpec(id="acme.globex"), "id", "expected tenant to be"),
        (TenantSpec(id="acme>"), "id", "expected tenant to be"),
        (TenantSpec(id=""), "id", "expected tenant to be"),
        (TenantSpec(id="a" * 49), "id", "expected tenant to be"),
        (TenantSpec(id="acme\x00"), "id", "expected tenant to be"),
        (TenantSpec(id="acme", name=""), "name", "printable"),
        (TenantSpec(id="acme", name="a\x00b"), "name", "printable"),
        (TenantSpec(id="acme", plan="gold"), "plan", "no plan 'gold'"),
        (TenantSpec(id="acme", tier="cloud"), "tier", "pooled, stream, account"),
        (TenantSpec(id="acme", channels={"a.b": None}), "channels", "expected channel to be"),
        (TenantSpec(id="acme", channels={"events": "soon"}), "channels.events", "positive duration"),
        (TenantSpec(id="acme", overrides={"speed": 1}), "speed", "expected a limit, one of"),
        (TenantSpec(id="acme", overrides={"storage": "big"}), "storage", "size like 512MiB"),
        (TenantSpec(id="acme", overrides={"replicas": 9}), "replicas", "from 1 to 5"),
        (TenantSpec(id="acme", placement={"planet": "mars"}), "placement", "cluster, tags or lake"),
    ],
)
async def test_what_is_not_valid_is_refused_by_name_and_leaves_nothing(
    administration: Administration, spec: TenantSpec, field: str, message: str
) -> None:
    with pytest.raises(TenantInvalid, match=message) as refused:
        await administration.put(spec, "test")
    assert refused.value.field == field
    assert await administration.registry.page() == []
    assert await administration.audit.newest() == []


async def test_a_tenant_that_was_created_while_nats_was_down_is_completed_when_it_is_back(
    platform: TestPlatform, own_nats: OwnServer, tmp_path: Path
) -> None:
    async with platform.database() as url:
        await ensure_schema(url, may_migrate=True)
        broker = Broker(f"nats://{own_nats.address}")
        async with open_administration(
            Settings(data=tmp_path), broker=broker, authority=None, database_url=url, secret="0123456789abcdef"
        ) as administration:
            own_nats.kill()
            tenant, created = await administration.put(TenantSpec(id="acme", overrides=SMALL), "test")
            assert created
            assert not tenant.is_ready
            assert "did not answer" in tenant.problem
            await own_nats.start()
            reconciler = Reconciler(administration)
            async with asyncio.timeout(60):
                while not (await administration.registry.get("acme")).is_ready:
                    await reconciler.finish_all()
            publish(await administration.lanes.resolve("acme", "events"), range(3))


async def test_a_server_without_operator_mode_holds_pooled_and_stream_tenants(
    platform: TestPlatform, own_nats: OwnServer, tmp_path: Path
) -> None:
    async with platform.database() as url:
        await ensure_schema(url, may_migrate=True)
        broker = Broker(f"nats://{own_nats.address}")
        async with open_administration(
            Settings(data=tmp_path), broker=broker, authority=None, database_url=url, secret="0123456789abcdef"
        ) as administration:
            for tier in ("pooled", "stream"):
                await administration.put(TenantSpec(id=tier, tier=tier, overrides=SMALL), "test")
                publish(await administration.lanes.resolve(tier, "events"), range(3))
            with pytest.raises(TenantConflict, match="operator mode"):
                await administration.put(TenantSpec(id="acme", tier="account"), "test")
            with pytest.raises(TenantConflict, match="operator mode"):
                await administration.credentials.issue("stream", "test")
            move = await administration.move("pooled", "stream", "test")
            assert move.finished_at
            assert await administration.drift.find() == []
            await administration.suspend("stream", "test")
            await administration.delete("stream", "test")
            await administration.delete("pooled", "test")


async def test_a_plan_is_changed_for_all_its_tenants(administration: Administration) -> None:
    await administration.put_plan("small", {**_limits("free"), "retention": "1h", "storage": "1MiB"}, "test")
    for tenant in ("acme", "globex"):
        await administration.put(TenantSpec(id=tenant, plan="small"), "test")
    await administration.put_plan("small", {"storage": "2MiB"}, "test")
    await Reconciler(administration).finish_all()
    for tenant in ("acme", "globex"):
        config = (await stream_of(administration, tenant))["config"]
        assert (config["max_bytes"], config["max_age"]) == (2 << 20, 3600 * 10**9)
    with pytest.raises(TenantConflict, match="has tenants"):
        await administration.delete_plan("small", "test")
    with pytest.raises(TenantInvalid, match="not complete"):
        await administration.put_plan("empty", {"weight": 1}, "test")


def _limits(plan: str) -> dict[str, Any]:
    import msgspec

    from tenantry.tenants.plans import SHIPPED

    document: dict[str, Any] = msgspec.to_builtins(next(each.limits for each in SHIPPED if each.name == plan))
    return document


async def test_a_tenant_beyond_the_asset_budget_is_refused_with_advice(platform: TestPlatform) -> None:
    async with platform.administration(nats_replicas=3, asset_budget=5) as administration:
        # The embedded server is one, and cannot hold three copies; what counts here is that the registry says no first.
        for tenant in ("acme", "globex"):
            await administration.put(TenantSpec(id=tenant, plan="enterprise"), "test")
        with pytest.raises(BudgetExceeded, match=r"6 replicated.*budget is 5.*pooled tier.*consumer_replicas"):
            await administration.put(TenantSpec(id="initech", plan="enterprise"), "test")
        assert await administration.registry.find("initech") is None
        await administration.put(TenantSpec(id="initech", plan="free"), "test")
        with pytest.raises(BudgetExceeded):
            await administration.put(TenantSpec(id="initech", overrides={"consumer_replicas": 3}), "test")
        # What adds nothing is let be.
        await administration.put(TenantSpec(id="initech", name="Initech"), "test")


async def test_a_master_secret_must_be_long_enough(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="at least 16 characters"):
        async with open_administration(
            Settings(data=tmp_path), broker=Broker("nats://x"), authority=None, database_url="x", secret="short"
        ):
            pass
