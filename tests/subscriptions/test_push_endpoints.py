"""Endpoints in a real database: made, changed, followed and erased."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tenantry.errors import TenantConflict, TenantInvalid, TenantNotFound
from tenantry.subscriptions import push_endpoints
from tenantry.subscriptions.push_endpoint import Order, PushSpec, State
from tenantry.subscriptions.push_endpoints import PushEndpoints
from tenantry.subscriptions.push_secrets import PushSecrets
from tenantry.tenants.administration import Administration
from tenantry.tenants.spec import TenantSpec
from tests.subscriptions.receiver import LOOPBACK

URL = "https://example.com/hook"


@pytest.fixture
async def endpoints(administration: Administration) -> PushEndpoints:
    await administration.put(TenantSpec(id="acme", tier="pooled"), "test")
    await administration.put(TenantSpec(id="globex", tier="pooled"), "test")
    return PushEndpoints(administration.pool, administration.registry, administration.audit, LOOPBACK)


async def test_a_new_endpoint_has_the_defaults(endpoints: PushEndpoints) -> None:
    made = await endpoints.create("acme", "orders", PushSpec(url=URL), "ann")
    assert (made.tenant_id, made.name, made.url, made.channel) == ("acme", "orders", URL, "events")
    assert (made.types, made.order, made.max_in_flight) == ((">",), Order.PARALLEL, 10)
    assert (made.timeout_seconds, made.retries, made.secret_version) == (15, 12, 1)
    assert (made.state, made.state_reason, made.previous_secret_until) == (State.ACTIVE, "", None)
    assert await endpoints.get("acme", "orders") == made
    assert await endpoints.of("acme") == [made]
    assert await endpoints.of("globex") == []


async def test_a_change_keeps_what_it_does_not_name(endpoints: PushEndpoints) -> None:
    made = await endpoints.create(
        "acme", "orders", PushSpec(url=URL, types=("order.*",), order="fifo"), "ann", channel="properties"
    )
    changed = await endpoints.change("acme", "orders", PushSpec(retries=0, timeout_seconds=5), "bob")
    assert (changed.retries, changed.timeout_seconds) == (0, 5)
    assert (changed.url, changed.types, changed.order, changed.channel) == (URL, ("order.*",), "fifo", "properties")
    assert changed.revision > made.revision
    assert await endpoints.change("acme", "orders", PushSpec(retries=0), "bob") == changed


@pytest.mark.parametrize(
    ("wanted", "field"),
    [
        ({"url": "http://169.254.169.254/"}, "url"),
        ({"order": "random"}, "order"),
        ({"types": ()}, "types"),
        ({"types": ("order..x",)}, "types"),
        ({"types": ("a",) * 101}, "types"),
        ({"max_in_flight": 0}, "max_in_flight"),
        ({"max_in_flight": 1 << 40}, "max_in_flight"),
        ({"timeout_seconds": 61}, "timeout_seconds"),
        ({"retries": -1}, "retries"),
    ],
)
async def test_what_makes_no_sense_is_refused_and_changes_nothing(
    endpoints: PushEndpoints, wanted: dict[str, Any], field: str
) -> None:
    made = await endpoints.create("acme", "orders", PushSpec(url=URL), "ann")
    for attempt in (
        endpoints.create("acme", "others", PushSpec(**{"url": URL} | wanted), "ann"),
        endpoints.change("acme", "orders", PushSpec(**wanted), "ann"),
    ):
        with pytest.raises(TenantInvalid) as caught:
            await attempt
        assert caught.value.field == field
    assert await endpoints.of("acme") == [made]


async def test_names_channels_and_tenants_must_be_right(
    endpoints: PushEndpoints, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = PushSpec(url=URL)
    with pytest.raises(TenantInvalid, match="expected name to be 1 to 32 lower-case letters"):
        await endpoints.create("acme", "No!", spec, "ann")
    with pytest.raises(TenantInvalid, match="tenant acme has no channel 'clicks'"):
        await endpoints.create("acme", "orders", spec, "ann", channel="clicks")
    with pytest.raises(TenantNotFound, match="there is no tenant 'nobody'"):
        await endpoints.create("nobody", "orders", spec, "ann")
    await endpoints.create("acme", "orders", spec, "ann")
    with pytest.raises(TenantConflict, match="tenant acme has an endpoint orders already"):
        await endpoints.create("acme", "orders", spec, "ann")
    await endpoints.create("globex", "orders", spec, "ann")
    for attempt in (endpoints.get("acme", "other"), endpoints.delete("acme", "other", "ann")):
        with pytest.raises(TenantNotFound, match="tenant acme has no endpoint 'other'"):
            await attempt
    monkeypatch.setattr(push_endpoints, "MOST_ENDPOINTS", 1)
    with pytest.raises(TenantConflict, match="tenant acme has 1 endpoints and can have no more"):
        await endpoints.create("acme", "other", spec, "ann")


async def test_a_rotation_gives_another_secret_and_lets_the_old_one_sign_on(
    endpoints: PushEndpoints, administration: Administration
) -> None:
    secrets = PushSecrets(administration.keyring)
    old = await endpoints.create("acme", "orders", PushSpec(url=URL), "ann")
    now = datetime.now(UTC)
    new = await endpoints.rotate("acme", "orders", "ann", overlap=3600)
    assert secrets.current(old).startswith("whsec_")
    assert secrets.current(old) != secrets.current(new)
    assert (old.signing_versions(now), new.signing_versions(now)) == ((1,), (2, 1))
    assert new.signing_versions(now + timedelta(hours=2)) == (2,)
    at_once = await endpoints.rotate("acme", "orders", "ann", overlap=0)
    assert (at_once.previous_secret_until, at_once.signing_versions(now)) == (None, (3,))
    with pytest.raises(TenantInvalid, match="expected overlap_seconds to be 0 to"):
        await endpoints.rotate("acme", "orders", "ann", overlap=-1)


async def test_an_endpoint_that_is_made_anew_has_another_secret(
    endpoints: PushEndpoints, administration: Administration
) -> None:
    secrets = PushSecrets(administration.keyring)
    first = await endpoints.create("acme", "orders", PushSpec(url=URL), "ann")
    await endpoints.delete("acme", "orders", "ann")
    second = await endpoints.create("acme", "orders", PushSpec(url=URL), "ann")
    assert secrets.current(first) != secrets.current(second)


async def test_secrets_are_stored_nowhere(endpoints: PushEndpoints, administration: Administration) -> None:
    made = await endpoints.create("acme", "orders", PushSpec(url=URL), "ann")
    await endpoints.reveal("acme", "orders", "bob")
    secret = PushSecrets(administration.keyring).current(made).removeprefix("whsec_")
    async with administration.pool.connection() as connection:
        for table in ("push_endpoints", "audit"):
            rows = await (await connection.execute(f"select to_jsonb(t)::text from tenantry.{table} t")).fetchall()
            assert rows
            assert secret not in str(rows)


async def test_who_watches_learns_of_every_change(endpoints: PushEndpoints, administration: Administration) -> None:
    async def names() -> list[tuple[str, str]]:
        return [(each.tenant_id, each.name) for each in await endpoints.active()]

    versions = [await endpoints.version()]

    async def has_changed() -> bool:
        versions.append(await endpoints.version())
        return versions[-1] not in versions[:-1]

    await endpoints.create("globex", "hook", PushSpec(url=URL), "ann")
    await endpoints.create("acme", "orders", PushSpec(url=URL), "ann")
    assert await has_changed()
    assert await names() == [("acme", "orders"), ("globex", "hook")]
    await endpoints.change("acme", "orders", PushSpec(retries=1), "ann")
    assert await has_changed()
    await endpoints.rotate("acme", "orders", "ann")
    assert await has_changed()
    await administration.suspend("globex", "ann")
    assert await has_changed()
    assert await names() == [("acme", "orders")]
    await endpoints.disable("acme", "orders", "ann", "maintenance")
    assert await names() == []
    await endpoints.enable("acme", "orders", "ann")
    assert await has_changed()
    (active,) = await endpoints.active()
    assert active == await endpoints.get("acme", "orders")
    assert (active.state, active.state_reason) == (State.ACTIVE, "")


async def test_an_endpoint_whose_receiver_is_gone_is_disabled_unless_it_leads_elsewhere_by_now(
    endpoints: PushEndpoints, administration: Administration
) -> None:
    made = await endpoints.create("acme", "orders", PushSpec(url=URL), "ann")
    await endpoints.change("acme", "orders", PushSpec(url="https://example.org/"), "ann")
    assert not await endpoints.retire(made, "answered 410")
    assert (await endpoints.get("acme", "orders")).state == State.ACTIVE
    assert await endpoints.retire(await endpoints.get("acme", "orders"), "answered 410")
    assert not await endpoints.retire(await endpoints.get("acme", "orders"), "answered 410")
    after = await endpoints.get("acme", "orders")
    assert (after.state, after.state_reason) == (State.DISABLED, "answered 410")
    assert [each.actor for each in await administration.audit.newest(1)] == ["push"]


async def test_every_act_is_in_the_audit_log(endpoints: PushEndpoints, administration: Administration) -> None:
    await endpoints.create("acme", "orders", PushSpec(url=URL), "ann")
    await endpoints.change("acme", "orders", PushSpec(retries=1), "bob")
    await endpoints.change("acme", "orders", PushSpec(retries=1), "bob")
    await endpoints.rotate("acme", "orders", "ann")
    await endpoints.disable("acme", "orders", "ann")
    await endpoints.disable("acme", "orders", "ann")
    await endpoints.enable("acme", "orders", "ann")
    await endpoints.reveal("acme", "orders", "eve")
    await endpoints.delete("acme", "orders", "ann")
    acts = [(each.act.removeprefix("endpoint."), each.actor) for each in await administration.audit.newest(7)]
    assert acts[::-1] == [
        ("create", "ann"),
        ("change", "bob"),
        ("rotate", "ann"),
        ("disable", "ann"),
        ("enable", "ann"),
        ("reveal", "eve"),
        ("delete", "ann"),
    ]
    await administration.audit.verify()


async def test_endpoints_go_with_their_channel_and_their_tenant(
    endpoints: PushEndpoints, administration: Administration
) -> None:
    await endpoints.create("acme", "orders", PushSpec(url=URL), "ann")
    await endpoints.create("acme", "profiles", PushSpec(url=URL), "ann", channel="properties")
    await administration.put(TenantSpec(id="acme", without_channels=("properties",)), "ann")
    assert [each.name for each in await endpoints.of("acme")] == ["orders"]
    await administration.delete("acme", "ann")
    assert await endpoints.active() == []
