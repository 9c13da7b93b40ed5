"""Drift: what somebody did to the servers behind our back is found, and put right if it is ours."""

from __future__ import annotations

import pytest
from nats.js.api import StreamConfig

from tenantry.nats import claims
from tenantry.nats.connections import connect
from tenantry.tenants.administration import Administration
from tenantry.tenants.drift import Kind
from tenantry.tenants.spec import TenantSpec
from tenantry.tenants.tenant import Tier
from tests.tenants.test_crashes import publish

TIERS = pytest.mark.parametrize("tier", list(Tier))


async def found(administration: Administration) -> set[tuple[str, str, str | None]]:
    return {(drift.kind, drift.what, drift.tenant) for drift in await administration.drift.find()}


@TIERS
async def test_a_stream_that_was_deleted_is_made_again(administration: Administration, tier: Tier) -> None:
    for tenant in ("acme", "globex"):
        await administration.put(TenantSpec(id=tenant, tier=tier), "test")
    assert await administration.drift.find() == []
    lane = await administration.lanes.resolve("acme", "events")
    async with administration.backbone.jetstream(lane.broker) as jetstream:
        await jetstream.delete_stream(lane.stream)
    owner = None if tier == Tier.POOLED else "acme"
    assert await found(administration) == {(Kind.MISSING, "stream", owner)}
    (drift,) = await administration.drift.repair()
    assert (drift.name, drift.repaired) == (lane.stream, True)
    assert await administration.drift.find() == []
    publish(lane, range(3))


@TIERS
async def test_a_stream_that_was_changed_is_changed_back(administration: Administration, tier: Tier) -> None:
    await administration.put(TenantSpec(id="acme", tier=tier), "test")
    lane = await administration.lanes.resolve("acme", "events")
    async with administration.backbone.jetstream(lane.broker) as jetstream:
        stream = await jetstream.stream(lane.stream)
        assert stream is not None
        await jetstream.update_stream(stream["config"] | {"max_age": 60 * 10**9, "duplicate_window": 10**9})
    (drift,) = await administration.drift.find()
    assert drift.kind == Kind.CHANGED
    assert drift.details["max_age"] == {"found": 60 * 10**9, "wanted": stream["config"]["max_age"]}
    assert "duplicate_window" in drift.details
    await administration.drift.repair()
    assert await administration.drift.find() == []


@TIERS
async def test_an_account_that_was_deleted_or_changed_is_put_right(administration: Administration, tier: Tier) -> None:
    tenant, _ = await administration.put(TenantSpec(id="acme", tier=tier), "test")
    await administration.credentials.issue("acme", "test")
    key = administration.lanes.account_key(tenant)
    operator = administration.backbone.operator
    await administration.backbone.accounts.push(claims.account_claims(operator, key.public, "hijacked"))
    assert (Kind.CHANGED, "account", "acme") in await found(administration)
    await administration.drift.repair()
    assert await administration.drift.find() == []
    await administration.backbone.accounts.delete([key.public])
    assert (Kind.MISSING, "account", "acme") in await found(administration)
    await administration.drift.repair()
    assert await administration.drift.find() == []


async def test_what_is_not_ours_is_told_and_not_touched(administration: Administration) -> None:
    await administration.put(TenantSpec(id="acme"), "test")
    await administration.put(TenantSpec(id="globex"), "test")
    async with connect(administration.lanes.platform, "test") as client:
        streams = client.jetstream()
        await streams.add_stream(StreamConfig(name="ORDERS", subjects=["orders.>"]))
        await streams.publish("orders.1", b"precious")
        # A stream of ours whose tenant nobody knows, and one in a tenant's place that is not ours.
        await streams.add_stream(
            StreamConfig(name="TENANT_GONE_EVENTS", subjects=["gone"], metadata={"tenantry.tenant": "gone"})
        )
        await streams.delete_stream("TENANT_ACME_EVENTS")
        await streams.add_stream(StreamConfig(name="TENANT_ACME_EVENTS", subjects=["other"]))
        drifts = {drift.name: drift for drift in await administration.drift.repair()}
        assert {name: drift.kind for name, drift in drifts.items()} == {
            "ORDERS": Kind.FOREIGN,
            "TENANT_GONE_EVENTS": Kind.ORPHAN,
            "TENANT_ACME_EVENTS": Kind.MISSING,
        }
        assert "not Tenantry's" in drifts["TENANT_ACME_EVENTS"].details["problem"]
        assert not any(drift.repaired for drift in drifts.values())
        assert (await streams.stream_info("ORDERS")).state.messages == 1
        assert (await streams.stream_info("TENANT_ACME_EVENTS")).config.subjects == ["other"]
        assert (await streams.stream_info("TENANT_GONE_EVENTS")).config.subjects == ["gone"]


async def test_a_stream_in_the_way_of_a_new_tenant_fails_it_with_a_reason_until_it_is_gone(
    administration: Administration,
) -> None:
    async with connect(administration.lanes.platform, "test") as client:
        streams = client.jetstream()
        await streams.add_stream(StreamConfig(name="TENANT_ACME_EVENTS", subjects=["other"]))
        tenant, _ = await administration.put(TenantSpec(id="acme"), "test")
        assert not tenant.is_ready
        assert "there is a stream TENANT_ACME_EVENTS already, and it is not Tenantry's" in tenant.problem
        await streams.delete_stream("TENANT_ACME_EVENTS")
    await administration.provisioner.converge("acme")
    assert (await administration.registry.get("acme")).is_ready


async def test_what_cannot_be_repaired_says_why(administration: Administration) -> None:
    await administration.put(TenantSpec(id="acme", channels={"events": None}), "test")
    async with connect(administration.lanes.platform, "test") as client:
        streams = client.jetstream()
        info = await streams.stream_info("TENANT_ACME_EVENTS")
        await streams.delete_stream("TENANT_ACME_EVENTS")
        # The same mark, but its events would be gone with a restart; that cannot be changed in a stream.
        await administration.backbone.platform.create_stream(
            {
                "name": "TENANT_ACME_EVENTS",
                "subjects": info.config.subjects,
                "storage": "memory",
                "metadata": {"tenantry.tenant": "acme", "tenantry.channel": "events"},
            }
        )
    (drift,) = await administration.drift.repair()
    assert not drift.repaired
    assert "storage" in drift.details["problem"]


async def test_a_stream_that_a_tenant_should_not_have_is_told(administration: Administration) -> None:
    await administration.put(TenantSpec(id="acme", tier="account"), "test")
    # As if a process that had slept through a move had provisioned the tenant where it used to be.
    mark = {"tenantry.tenant": "acme", "tenantry.channel": "events"}
    await administration.backbone.platform.create_stream(
        {"name": "TENANT_ACME_EVENTS", "subjects": ["tenantry.tenants.acme.events.>"], "metadata": mark}
    )
    (drift,) = await administration.drift.repair()
    assert (drift.kind, drift.name, drift.repaired) == (Kind.ORPHAN, "TENANT_ACME_EVENTS", False)


async def test_a_repair_that_fails_leaves_no_stale_problem_behind(administration: Administration) -> None:
    await administration.put(TenantSpec(id="acme"), "test")
    async with connect(administration.lanes.platform, "test") as client:
        streams = client.jetstream()
        await streams.delete_stream("TENANT_ACME_EVENTS")
        await streams.add_stream(StreamConfig(name="TENANT_ACME_EVENTS", subjects=["other"]))
        (drift,) = await administration.drift.repair()
        assert not drift.repaired
        await streams.delete_stream("TENANT_ACME_EVENTS")
    await administration.drift.repair()
    tenant = await administration.registry.get("acme")
    assert (tenant.is_ready, tenant.problem) == (True, "")
