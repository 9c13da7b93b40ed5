"""Leaks: what a tenant tries with its own credentials and a raw client comes to nothing, at every tier.

Each try is refused by the server, or what it does stays with the tenant that tried it. After each group of tries the
neighbour is compared with what it was before, event by event.
"""

from __future__ import annotations

import asyncio
import base64
from contextlib import AsyncExitStack
from dataclasses import replace

import msgspec
import pytest

from nats_bulk import Credentials
from tenantry import event
from tenantry.errors import BrokerError
from tenantry.nats import claims
from tenantry.nats.connections import Broker, connect, open_client
from tenantry.nats.keys import Key, Role
from tenantry.tenants.administration import Administration
from tenantry.tenants.boundary import TENANT_EXTENSION, claim_for
from tenantry.tenants.door import OWN_CONNECTIONS, copy_api
from tenantry.tenants.lanes import Lane
from tenantry.tenants.spec import TenantSpec
from tenantry.tenants.tenant import Tier
from tests.tenants.hostile import EVENTS, SECRET, Neighbours, attack_as, settle_neighbours

LEAST_TRIES = 40

pytestmark = pytest.mark.parametrize("tier", list(Tier))


@pytest.fixture
async def neighbours(administration: Administration, tier: Tier) -> Neighbours:
    return await settle_neighbours(administration, tier)


def forbidden_to_hear(lane: Lane) -> list[tuple[str, str]]:
    """Subjects to listen to, with a queue group to squeeze into."""
    prefix, other = lane.prefix, lane.prefix.replace("acme", "globex")
    app = prefix.split(".")[0]
    return [
        (">", ""),
        ("*.>", ""),
        (f"{app}.>", ""),
        (f"{app}.tenants.>", ""),
        (f"{app}.tenants.*.events.>", ""),
        (f"{app}.tenants.globex.>", ""),
        (f"{other}.>", ""),
        (f"{other}.order.created", "workers"),
        (f"{app}.moves.>", ""),
        ("$JS.>", ""),
        ("$JS.API.>", ""),
        ("$JS.ACK.>", ""),
        ("$JS.EVENT.>", ""),
        ("$SYS.>", ""),
        ("$TENANTRY.>", ""),
        ("_R_.>", ""),
        ("$KV.>", ""),
    ]


def forbidden_to_say(own: Lane, other: Lane) -> list[tuple[str, bytes]]:
    app = own.prefix.split(".")[0]
    stream, consumer = other.stream, other.consumer_name("billing")
    create = msgspec.json.encode(
        {
            "stream_name": stream,
            "config": {
                "durable_name": "spy",
                "deliver_subject": f"{own.prefix}.stolen",
                "filter_subject": other.subjects,
            },
        }
    )
    spy_on_own = msgspec.json.encode(
        {
            "stream_name": own.stream,
            "config": {"durable_name": "spy", "filter_subject": other.subjects, "ack_policy": "none"},
        }
    )
    into_other = msgspec.json.encode(
        {"stream_name": own.stream, "config": {"durable_name": "spy", "deliver_subject": f"{other.prefix}.forged"}}
    )
    mirror = msgspec.json.encode({"name": "SPY", "mirror": {"name": stream}})
    listener = msgspec.json.encode({"name": "SPY", "subjects": [f"{app}.tenants.globex.>"]})
    return [
        (f"{other.prefix}.order.created", b"forged"),
        (f"{app}.tenants.globex.properties.user", b"forged"),
        (f"{app}.tenants.initech.events.order", b"forged"),
        (f"{app}.pools.0", b"forged"),
        (f"{app}.moves.globex.events", b"forged"),
        ("$JS.API.INFO", b""),
        ("$JS.API.STREAM.NAMES", b""),
        ("$JS.API.STREAM.LIST", b""),
        (f"$JS.API.STREAM.INFO.{stream}", b""),
        (f"$JS.API.STREAM.DELETE.{stream}", b""),
        (f"$JS.API.STREAM.PURGE.{stream}", b""),
        (f"$JS.API.STREAM.PURGE.{own.stream}", msgspec.json.encode({"filter": other.subjects})),
        (f"$JS.API.STREAM.UPDATE.{stream}", msgspec.json.encode({"name": stream, "subjects": [own.subjects]})),
        (f"$JS.API.STREAM.MSG.GET.{stream}", b'{"seq": 1}'),
        (f"$JS.API.STREAM.MSG.DELETE.{stream}", b'{"seq": 1}'),
        (f"$JS.API.STREAM.SNAPSHOT.{stream}", b'{"deliver_subject": "_INBOX.stolen"}'),
        ("$JS.API.STREAM.CREATE.SPY", mirror),
        ("$JS.API.STREAM.CREATE.SPY", listener),
        (f"$JS.API.DIRECT.GET.{stream}", b'{"seq": 1, "batch": 100}'),
        (f"$JS.API.DIRECT.GET.{stream}.{other.prefix}.order.created", b""),
        (f"$JS.API.CONSUMER.CREATE.{stream}.spy", create),
        (f"$JS.API.CONSUMER.DURABLE.CREATE.{stream}.spy", create),
        (f"$JS.API.CONSUMER.CREATE.{own.stream}.spy.{other.subjects}", spy_on_own),
        (f"$JS.API.CONSUMER.CREATE.{own.stream}.spy", into_other),
        (f"$JS.API.CONSUMER.LIST.{stream}", b""),
        (f"$JS.API.CONSUMER.INFO.{stream}.{consumer}", b""),
        (f"$JS.API.CONSUMER.DELETE.{stream}.{consumer}", b""),
        (f"$JS.API.CONSUMER.PAUSE.{stream}.{consumer}", b'{"pause_until": "2100-01-01T00:00:00Z"}'),
        (f"$JS.API.CONSUMER.LEADER.STEPDOWN.{stream}.{consumer}", b""),
        ("$SYS.REQ.CLAIMS.UPDATE", b"forged"),
        ("$SYS.REQ.CLAIMS.LIST", b""),
        ("$SYS.REQ.SERVER.PING", b""),
        ("$SYS.REQ.ACCOUNT.PING.CONNZ", b""),
        (f"$TENANTRY.API.CONSUMER.CREATE.{stream}.spy", create),
        ("$TENANTRY.MOVE.globex.events.x", b"forged"),
        ("_INBOX.guessed.1", b"forged"),
        ("_R_.guessed.1", b"forged"),
        (f"$JS.API.CONSUMER.MSG.NEXT.{stream}.{consumer}", b'{"batch": 10, "no_wait": true}'),
        (f"$JS.ACK.{stream}.{consumer}.1.1.1.1.1", b"+ACK"),
    ]


async def test_nothing_forbidden_is_heard_or_said(neighbours: Neighbours) -> None:
    before = await neighbours.state_of_other()
    to_hear = forbidden_to_hear(neighbours.own)
    to_say = forbidden_to_say(neighbours.own, neighbours.other)
    assert len(to_hear) + len(to_say) >= LEAST_TRIES
    async with attack_as(neighbours.url, neighbours.secret) as attacker:
        for subject, queue in to_hear:
            await attacker.listen(subject, queue)
        for subject, payload in to_say:
            await attacker.say(subject, payload, "_INBOX.loot")
        assert await attacker.let_through("subscription", [subject for subject, _ in to_hear]) == []
        assert await attacker.let_through("publish", [subject for subject, _ in to_say]) == []
        assert await neighbours.state_of_other() == before
        # The neighbour goes on; its events, acknowledgements and answers reach nobody else.
        await asyncio.to_thread(neighbours.publish_for_other, "while-listened-to")
        await attacker.until_all_is_heard(neighbours)
        assert attacker.heard == []


async def test_what_is_allowed_cannot_be_turned_against_a_neighbour(neighbours: Neighbours) -> None:
    own, other = neighbours.own, neighbours.other
    neighbours.publish(own, b"own event", "own")
    before = await neighbours.state_of_other()
    fetch = f"$JS.API.CONSUMER.MSG.NEXT.{own.stream}.{own.consumer_name('billing')}"
    direct = own.direct_get()[0].replace(">", "order.created")
    async with attack_as(neighbours.url, neighbours.secret) as attacker:
        # The server answers whoever asks; its answer must not go where the asker itself may not.
        for target in (f"{other.prefix}.forged", f"{other.prefix}.order.created", "$JS.API.INFO", "_R_.x", "_INBOX.x"):
            await attacker.say(f"{own.prefix}.order.created", b"forged", target)
            await attacker.say(direct, b"" if own.is_shared else b'{"seq": 1}', target)
            await attacker.say(fetch, b'{"batch": 10, "no_wait": true}', target)
            await attacker.say(f"$JS.ACK.{own.stream}.{own.consumer_name('billing')}.1.1.1.1.1", b"+NXT", target)
        # Questions about its own lane that name the neighbour's.
        for question in (
            {"last_by_subj": other.subjects},
            {"next_by_subj": other.subjects, "seq": 1},
            {"multi_last": [other.subjects]},
            {"multi_last": [">"]},
            {"seq": 1, "batch": 1000},
            {"start_time": "2000-01-01T00:00:00Z", "batch": 1000},
        ):
            await attacker.ask(direct, msgspec.json.encode(question))
        await attacker.ask(fetch, b'{"batch": 100, "no_wait": true}')
        assert not [each for each in attacker.heard if SECRET in each.data or "globex" in str(each.headers)]
    assert await neighbours.state_of_other() == before


async def test_the_way_of_a_move_leads_the_tenant_nowhere_else(
    neighbours: Neighbours, administration: Administration, tier: Tier
) -> None:
    """While it is moved, the tenant's account may ask the platform's for consumers; its users may not."""
    if tier == Tier.ACCOUNT:
        pytest.skip("there is no tier above")
    own, other = neighbours.own, neighbours.other
    # Events that are requests: one for the neighbour's events, one to deliver the tenant's own among them.
    loot = own.prefix.replace("events", "properties")
    steal = {"filter_subject": other.subjects, "deliver_subject": f"{loot}.loot", "ack_policy": "none"}
    forge = {"filter_subject": own.subjects, "deliver_subject": f"{other.prefix}.forged", "ack_policy": "none"}
    for name, config in (("steal", steal), ("forge", forge)):
        request = msgspec.json.encode({"stream_name": own.stream, "config": config})
        neighbours.publish(own, request, name, type=name)
    move = await administration.begin_move("acme", "account", "test")
    await administration.provisioner.converge("acme", again=True)
    before = await neighbours.state_of_other()
    streams = {own.stream, other.stream}
    consumers = {stream: await names_of_consumers(administration, stream) for stream in streams}
    async with attack_as(neighbours.url, neighbours.secret) as attacker:
        await attacker.listen(f"{loot}.>")
        for token in (str(move.id), move.id.hex, administration.lanes.copy_token(move.id)):
            for target in (own.stream, f"{own.stream}.spy", f"{own.stream}.spy.{other.subjects}", other.stream):
                # The server answers with what the tenant wrote, to where the tenant itself may not publish.
                for name in ("steal", "forge"):
                    direct = f"$JS.API.DIRECT.GET.{own.stream}.{own.prefix}.{name}"
                    await attacker.say(direct, b"", f"{copy_api(token)}.CONSUMER.CREATE.{target}")
        await attacker.flush()
        await asyncio.to_thread(neighbours.publish_for_other, "while-moving")
        await attacker.until_all_is_heard(neighbours)
        assert attacker.heard == []
    assert {stream: await names_of_consumers(administration, stream) for stream in streams} == consumers
    assert (await neighbours.state_of_other())["events"][:-1] == before["events"]
    await administration.mover.carry_on("acme")
    assert (await administration.registry.get("acme")).tier == Tier.ACCOUNT


async def names_of_consumers(administration: Administration, stream: str) -> set[str]:
    return {each["name"] async for each in administration.backbone.platform.consumers(stream)}


async def test_ids_and_headers_of_one_tenant_change_nothing_for_another(neighbours: Neighbours, tier: Tier) -> None:
    own, other = neighbours.own, neighbours.other
    before = await neighbours.state_of_other()
    async with attack_as(neighbours.url, neighbours.secret) as attacker:
        for headers in (
            {"Nats-Msg-Id": "stolen-1"},
            {"Nats-Msg-Id": other.message_id("stolen-2")},
            {"Nats-Rollup": "all"},
            {"Nats-Rollup": "sub"},
            {"Nats-TTL": "1s"},
            {"Nats-Expected-Stream": other.stream},
            {"Nats-Expected-Last-Sequence": "0"},
            {"Nats-Stream": other.stream, "Nats-Subject": f"{other.prefix}.x", "Nats-Sequence": "1"},
            {"tenant": "globex", "ce-tenantid": "globex"},
        ):
            await attacker.say(f"{own.prefix}.order.created", b"forged", **headers)
        await attacker.flush()
    assert await neighbours.state_of_other() == before
    # An id that the attacker used first does not make the neighbour's event a duplicate.
    result = await asyncio.to_thread(neighbours.publish_for_other, "stolen-1", "stolen-2")
    assert result.duplicates == set()
    assert [payload for _, _, payload in neighbours.read_other()] == [SECRET] * (EVENTS + 2)


async def test_a_tenant_named_in_the_payload_is_overridden_and_counted(
    neighbours: Neighbours, signals: list[tuple[str, dict[str, object]]]
) -> None:
    lane = neighbours.own
    claimed = event.Event(
        id="1", source="/x", type="order.created", extensions={"tenantid": "globex", "tenant": "globex"}
    )
    settled = claim_for(lane, event.decode(event.encode(claimed)), f"{lane.prefix}.order.created")
    assert settled.extensions == {TENANT_EXTENSION: "acme"}
    assert [fields for name, fields in signals if name == "tenants.claim_overridden"] == [
        {"tenant": "acme", "claimed": "globex"}
    ] * 2


async def test_payloads_beyond_the_plan_are_refused(neighbours: Neighbours, administration: Administration) -> None:
    before = await neighbours.state_of_other()
    async with administration.backbone.jetstream(neighbours.own.broker) as jetstream:
        for size in (64 * 1024 + 1, 900_000):
            async with attack_as(neighbours.url, neighbours.secret) as attacker:
                await attacker.say(f"{neighbours.own.prefix}.big", b"x" * size)
                while attacker.client.is_connected:
                    await asyncio.sleep(0.01)
        assert await jetstream.last_sequence(neighbours.own.stream, f"{neighbours.own.prefix}.big") == 0
    assert await neighbours.state_of_other() == before


async def test_forged_revoked_and_expired_credentials_do_not_get_in(
    neighbours: Neighbours, administration: Administration
) -> None:
    secret = neighbours.secret
    other_account = administration.lanes.account_key(await administration.registry.get("globex"))
    own_account = administration.lanes.account_key(await administration.registry.get("acme"))
    stranger, forger = Key.generate(Role.USER), Key.generate(Role.ACCOUNT)
    everything = claims.UserPermissions()

    def altered(**changes: object) -> str:
        header, _, signature = secret.jwt.split(".")
        said = claims.read(secret.jwt)
        said["nats"] |= changes
        body = base64.urlsafe_b64encode(msgspec.json.encode(said)).decode().rstrip("=")
        return f"{header}.{body}.{signature}"

    def unsigned(algorithm: str) -> str:
        head = base64.urlsafe_b64encode(msgspec.json.encode({"typ": "JWT", "alg": algorithm})).decode().rstrip("=")
        return f"{head}.{secret.jwt.split('.')[1]}."

    revoked, revoked_secret = await administration.credentials.issue("acme", "test")
    await administration.credentials.revoke("acme", revoked.id, "test")
    expired = claims.issue_user(own_account, "expired", lifetime=-10)
    tries: dict[str, Credentials] = {
        "wider permissions": replace(secret, jwt=altered(pub={"allow": [">"]}, sub={"allow": [">"]})),
        "another account": replace(secret, jwt=altered(issuer_account=other_account.public)),
        "another type": replace(secret, jwt=altered(type="account")),
        "no algorithm": replace(secret, jwt=unsigned("none")),
        "another algorithm": replace(secret, jwt=unsigned("HS256")),
        "no signature": replace(secret, jwt=secret.jwt.rpartition(".")[0] + "."),
        "another's seed": replace(secret, seed=stranger.seed),
        "own account key": claims.issue_user(forger, "forged"),
        "for the neighbour": Credentials(
            jwt=claims.user_claims(forger, stranger.public, "forged", issuer_account=other_account.public),
            seed=stranger.seed,
        ),
        "for the platform": Credentials(
            jwt=claims.user_claims(
                forger,
                stranger.public,
                "forged",
                permissions=everything,
                issuer_account=administration.lanes.platform_account,
            ),
            seed=stranger.seed,
        ),
        "revoked": revoked_secret,
        "expired": expired,
        "nothing": Credentials(),
        "a token": Credentials(token="tenantry"),
    }
    got_in = [name for name, credentials in tries.items() if await gets_in(neighbours.url, credentials)]
    assert got_in == []
    assert await gets_in(neighbours.url, secret)


async def test_connections_beyond_the_plan_are_refused(neighbours: Neighbours, administration: Administration) -> None:
    await administration.put(TenantSpec(id="acme", overrides={"connections": 2}), "test")
    room_for_ours = 0 if neighbours.own.broker == administration.lanes.platform else OWN_CONNECTIONS
    async with AsyncExitStack() as stack:
        for _ in range(2 + room_for_ours):
            await stack.enter_async_context(connect(Broker(neighbours.url, neighbours.secret), "flood"))
        assert not await gets_in(neighbours.url, neighbours.secret)
    # The neighbour still gets in.
    _, other = await administration.credentials.issue("globex", "test")
    assert await gets_in(neighbours.url, other)


async def gets_in(url: str, credentials: Credentials) -> bool:
    try:
        client = await open_client(Broker(url, credentials), "test")
    except BrokerError:
        return False
    await client.close()
    return True
