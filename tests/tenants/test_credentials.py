"""Credentials: issued for what they are for, rotated, revoked, and never stored."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import nats.errors
import pytest
from nats.aio.client import Client
from nats.aio.msg import Msg
from psycopg import sql

from nats_bulk import Credentials
from tenantry.embedded.ports import HOST
from tenantry.errors import BrokerError, TenantConflict, TenantInvalid, TenantNotFound
from tenantry.nats import claims
from tenantry.nats.claims import format_credentials
from tenantry.nats.connections import Broker, connect
from tenantry.tenants.administration import Administration
from tenantry.tenants.credential_desk import MOST_CREDENTIALS
from tenantry.tenants.spec import TenantSpec
from tenantry.tenants.tenant import Tier
from tenantry.testing import TestPlatform
from tests.own_server import OwnServer

LEAF_PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "leaf-node.md"
TIERS = pytest.mark.parametrize("tier", list(Tier))


async def can_connect(administration: Administration, secret: Credentials) -> bool:
    try:
        async with connect(Broker(administration.lanes.platform.url, secret), "test"):
            return True
    except BrokerError:
        return False


@pytest.mark.parametrize("tier", ["stream", "account"])
async def test_each_kind_may_do_what_it_is_for(administration: Administration, tier: str) -> None:
    await administration.put(TenantSpec(id="acme", tier=tier), "test")
    lane = await administration.lanes.resolve("acme", "events")

    async def does(kind: str) -> tuple[bool, bool, bool]:
        """Publish, hear what is published, ask for what was stored."""
        _, secret = await administration.credentials.issue("acme", "test", kind=kind)
        async with (
            connect(Broker(lane.broker.url, secret), "test") as client,
            connect(lane.broker, "platform") as platform,
        ):
            heard: asyncio.Queue[object] = asyncio.Queue()
            await client.subscribe(lane.subjects, cb=heard.put)
            await client.flush()
            published, asked = [await answers(client, each) for each in ((f"{lane.prefix}.x", b""), get)]
            await platform.request(f"{lane.prefix}.x", b"", timeout=5)
            await client.flush()
            await platform.flush()
            return published, not heard.empty(), asked

    async def answers(client: Client, question: tuple[str, bytes]) -> bool:
        try:
            await client.request(*question, timeout=0.5)
        except (nats.errors.TimeoutError, nats.errors.NoRespondersError):
            return False
        return True

    get = (f"$JS.API.DIRECT.GET.{lane.stream}", b'{"seq": 1}')
    async with connect(lane.broker, "platform") as platform:
        await platform.request(f"{lane.prefix}.first", b"", timeout=5)
    assert await does("client") == (True, True, True)
    assert await does("publish") == (True, False, False)
    assert await does("read") == (False, True, True)


async def test_a_pooled_tenant_does_not_publish_by_itself(administration: Administration) -> None:
    await administration.put(TenantSpec(id="acme", tier="pooled"), "test")
    lane = await administration.lanes.resolve("acme", "events")
    with pytest.raises(TenantConflict, match="through the outbox or HTTP"):
        await administration.credentials.issue("acme", "test", kind="publish")
    _, secret = await administration.credentials.issue("acme", "test")
    async with connect(Broker(lane.broker.url, secret), "test") as client:
        with pytest.raises(nats.errors.NoRespondersError):
            await client.request(f"{lane.prefix}.x", b"", timeout=5)
        # Moved up, the same credentials do.
        await administration.move("acme", "stream", "test")
        assert b"seq" in (await client.request(f"{lane.prefix}.x", b"", timeout=5)).data


@TIERS
async def test_a_rotated_credential_is_replaced_and_a_revoked_one_is_cut_off(
    administration: Administration, tier: Tier
) -> None:
    await administration.put(TenantSpec(id="acme", tier=tier), "test")
    first, first_secret = await administration.credentials.issue("acme", "test", name="app")
    _, other_secret = await administration.credentials.issue("acme", "test", name="other")
    second, second_secret = await administration.credentials.rotate("acme", first.id, "test")
    assert (second.name, second.kind) == ("app", first.kind)
    assert [await can_connect(administration, each) for each in (first_secret, second_secret, other_secret)] == [
        False,
        True,
        True,
    ]
    third, third_secret = await administration.credentials.rotate("acme", second.id, "test", keep_old=True)
    assert await can_connect(administration, second_secret)
    assert await can_connect(administration, third_secret)
    closed = asyncio.Event()

    async def on_disconnect() -> None:
        closed.set()

    async with connect(Broker(administration.lanes.platform.url, third_secret), "test") as client:
        client._disconnected_cb = on_disconnect
        await administration.credentials.revoke("acme", third.id, "test")
        await asyncio.wait_for(closed.wait(), 10)
    with pytest.raises(TenantNotFound, match="still valid"):
        await administration.credentials.rotate("acme", third.id, "test")
    with pytest.raises(TenantNotFound, match="could be revoked"):
        await administration.credentials.revoke("acme", third.id, "test")
    assert [each.revoked_at is None for each in await administration.credentials.of("acme")] == [
        False,
        True,
        True,
        False,
    ]
    assert await administration.drift.find() == []


async def test_a_revoked_credential_stays_so_through_suspension_and_moves(administration: Administration) -> None:
    await administration.put(TenantSpec(id="acme", tier="stream"), "test")
    revoked, secret = await administration.credentials.issue("acme", "test")
    await administration.credentials.revoke("acme", revoked.id, "test")
    await administration.suspend("acme", "test")
    await administration.resume("acme", "test")
    assert not await can_connect(administration, secret)
    await administration.move("acme", "account", "test")
    assert not await can_connect(administration, secret)


async def test_no_secret_is_in_the_database(administration: Administration, platform: TestPlatform) -> None:
    await administration.put(TenantSpec(id="acme", tier="account"), "test")
    _, secret = await administration.credentials.issue("acme", "test", consumer="billing")
    account = administration.lanes.account_key(await administration.registry.get("acme"))
    async with administration.pool.connection() as connection:
        everything = ""
        tables = await connection.execute("select tablename from pg_tables where schemaname = 'tenantry'")
        for (table,) in await tables.fetchall():
            rows = await connection.execute(
                sql.SQL("select t::text from {} t").format(sql.Identifier("tenantry", table))
            )
            everything += "\n".join(row[0] for row in await rows.fetchall())
    assert "acme" in everything
    for hidden in (secret.seed, secret.jwt, account.seed, secret.jwt.split(".")[2]):
        assert hidden not in everything


@TIERS
async def test_a_consumer_goes_with_the_last_credential_for_it(administration: Administration, tier: Tier) -> None:
    await administration.put(TenantSpec(id="acme", tier=tier), "test")
    lane = await administration.lanes.resolve("acme", "events")
    first, _ = await administration.credentials.issue("acme", "test", consumer="billing")
    second, _ = await administration.credentials.issue("acme", "test", consumer="billing")
    async with administration.backbone.jetstream(lane.broker) as jetstream:
        # One of our own services, which happens to have been named as well, stays.
        own = {"durable_name": lane.consumer_name("ours"), "ack_policy": "explicit", "max_ack_pending": 10}
        if lane.is_shared:
            own["filter_subject"] = lane.subjects
        await jetstream.create_consumer(lane.stream, own)
        named, _ = await administration.credentials.issue("acme", "test", consumer="ours")
        left = []
        for credential in (first, second, named):
            await administration.credentials.revoke("acme", credential.id, "test")
            left.append({each["name"] async for each in jetstream.consumers(lane.stream)})
    billing, ours = lane.consumer_name("billing"), lane.consumer_name("ours")
    assert left == [{billing, ours}, {ours}, {ours}]


async def test_credentials_are_few_enough_to_lock_all_of_them_out(
    administration: Administration,
) -> None:
    await administration.put(TenantSpec(id="acme"), "test")
    _, secret = await administration.credentials.issue("acme", "test")
    async with administration.pool.connection() as connection:
        await connection.execute(
            "insert into tenantry.credentials (tenant_id, name, kind, user_key) "
            "select 'acme', 'filler', 'client', 'U' || lpad(n::text, 55, 'A') from generate_series(2, %s) n",
            (MOST_CREDENTIALS,),
        )
    with pytest.raises(TenantConflict, match=r"1,000 credentials .* give credentials a lifetime"):
        await administration.credentials.issue("acme", "test")
    suspended = await administration.suspend("acme", "test")
    assert suspended.is_ready
    assert not await can_connect(administration, secret)


async def test_consumers_beyond_the_plan_are_refused(administration: Administration) -> None:
    await administration.put(TenantSpec(id="acme", overrides={"consumers": 2}), "test")
    for consumer in ("one", "two", "two"):
        await administration.credentials.issue("acme", "test", consumer=consumer)
    with pytest.raises(TenantConflict, match="has 2 consumers and its plan allows 2"):
        await administration.credentials.issue("acme", "test", consumer="three")
    with pytest.raises(TenantInvalid, match="has no channel 'rare'"):
        await administration.credentials.issue("acme", "test", consumer="two", channel="rare")
    with pytest.raises(TenantInvalid, match="expected"):
        await administration.credentials.issue("acme", "test", consumer="a.b")


@pytest.mark.parametrize("tier", ["pooled", "stream"])
async def test_a_leaf_node_needs_the_tier_account(administration: Administration, tier: str) -> None:
    await administration.put(TenantSpec(id="acme", tier=tier, plan="enterprise"), "test")
    with pytest.raises(TenantConflict, match="leaf nodes need the tier account"):
        await administration.credentials.issue("acme", "test", kind="leaf")
    # Neither would the server take one: not now, and not on the way.
    claimed = await administration.backbone.accounts.lookup(
        administration.lanes.account_key(await administration.registry.get("acme")).public
    )
    assert claims.read(claimed or "")["nats"]["limits"].get("leaf", 0) == 0
    await administration.move("acme", "account", "test")
    await administration.credentials.issue("acme", "test", kind="leaf")


@pytest.mark.parametrize("tier", ["account"])
async def test_a_leaf_node_publishes_under_the_tenants_prefix_and_nowhere_else(
    platform: TestPlatform, tier: str, tmp_path: Path
) -> None:
    async with platform.administration() as administration:
        for tenant in ("acme", "globex"):
            await administration.put(TenantSpec(id=tenant, tier=tier, plan="enterprise"), "test")
        _, secret = await administration.credentials.issue("acme", "test", kind="leaf")
        assert not await can_connect(administration, secret)
        own = await administration.lanes.resolve("acme", "events")
        other = await administration.lanes.resolve("globex", "events")
        creds = tmp_path / "leaf.creds"
        creds.write_text(format_credentials(secret))
        assert platform.nats.leaf_port
        (documented,) = re.findall(r"```conf\n.*?(leafnodes .*?)```", LEAF_PAGE.read_text(), re.DOTALL)
        hub = f"nats-leaf://{HOST}:{platform.nats.leaf_port}"
        leaf = OwnServer(
            tmp_path, documented.replace("nats-leaf://127.0.0.1:7422", hub).replace("leaf.creds", str(creds))
        )
        await leaf.start()
        try:
            async with connect(Broker(f"nats://{leaf.address}"), "site") as site:
                answer = await until_answered(site, f"{own.prefix}.order")
                assert own.stream.encode() in answer
                heard: asyncio.Queue[Msg] = asyncio.Queue()
                for subject in (">", other.subjects, "$JS.>", "$SYS.>"):
                    await site.subscribe(subject, cb=heard.put)
                forbidden = (f"{other.prefix}.order", "$JS.API.STREAM.NAMES", f"$JS.API.STREAM.PURGE.{other.stream}")
                for subject in forbidden:
                    await site.publish(subject, b"from the leaf", reply=f"{other.prefix}.forged")
                # What is answered behind them shows that the hub has dealt with them.
                await site.request(f"{own.prefix}.order", b"2", timeout=5)
                async with connect(other.broker, "platform") as neighbour:
                    await neighbour.request(f"{other.prefix}.order", b"of the neighbour", timeout=5)
                await site.request(f"{own.prefix}.order", b"3", timeout=5)
                messages = [heard.get_nowait() for _ in range(heard.qsize())]
                assert messages
                assert b"of the neighbour" not in [message.data for message in messages]
            async with administration.backbone.jetstream(other.broker) as jetstream:
                stream = await jetstream.stream(other.stream)
                assert stream is not None
                assert stream["state"]["messages"] == 1
        finally:
            await leaf.stop()


async def until_answered(client: Client, subject: str) -> bytes:
    """A leaf node takes a moment to connect to its hub."""
    async with asyncio.timeout(30):
        while True:
            try:
                return (await client.request(subject, b"1", timeout=0.5)).data
            except (nats.errors.NoRespondersError, nats.errors.TimeoutError):
                continue
