"""Accounts on the running server: pushed, changed, revoked, deleted, and limited as their claims say."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import nats.errors
import nats.js.errors
import pytest
from nats.js.api import StorageType, StreamConfig

from nats_bulk import Credentials
from tenantry.errors import BrokerRefused, BrokerUnreachable, ClaimRefused
from tenantry.nats import claims
from tenantry.nats.accounts import AccountServer, revoke_before_now
from tenantry.nats.connections import Broker, connect, open_client
from tenantry.nats.keys import Key, Role
from tenantry.testing import TestPlatform


@pytest.fixture
async def server(platform: TestPlatform) -> AsyncIterator[AccountServer]:
    async with connect(platform.nats.system, "test") as system:
        yield AccountServer(system, platform.nats.identity.operator_signing)


@pytest.fixture
def operator(platform: TestPlatform) -> Key:
    return platform.nats.identity.operator_signing


async def test_an_account_is_there_as_soon_as_it_is_pushed_and_gone_when_deleted(
    platform: TestPlatform, server: AccountServer, operator: Key
) -> None:
    key = Key.generate(Role.ACCOUNT)
    token = claims.account_claims(operator, key.public, "acme")
    broker = Broker(platform.nats.url, claims.issue_user(key, "user"))
    with pytest.raises(BrokerRefused):
        await open_client(broker, "test")
    await server.push(token)
    assert key.public in await server.list()
    assert await server.lookup(key.public) == token
    client = await open_client(broker, "test")
    await server.delete([key.public])
    assert key.public not in await server.list()
    assert await server.lookup(key.public) is None
    with pytest.raises(BrokerRefused):
        await open_client(broker, "test")
    await client.close()


async def test_an_account_that_was_deleted_is_there_again_when_it_is_pushed_again_at_once(
    platform: TestPlatform, server: AccountServer, operator: Key
) -> None:
    key = Key.generate(Role.ACCOUNT)
    broker = Broker(platform.nats.url, claims.issue_user(key, "user"))
    for _ in range(3):
        await server.push(claims.account_claims(operator, key.public, "acme"))
        async with connect(broker, "test"):
            pass
        await server.delete([key.public])


async def test_two_accounts_do_not_hear_each_other(platform: TestPlatform) -> None:
    async with (
        platform.account() as one,
        platform.account() as other,
        connect(one, "speaker") as speaker,
        connect(one, "peer") as peer,
        connect(other, "listener") as listener,
    ):
        unheard = await listener.subscribe(">")
        heard = await peer.subscribe("secret.plans")
        await listener.flush()
        await peer.flush()
        await speaker.publish("secret.plans", b"x")
        assert (await heard.next_msg(timeout=5)).data == b"x"
        await listener.flush()
        assert unheard.pending_msgs == 0


async def test_storage_and_stream_limits_are_enforced_by_the_server(platform: TestPlatform) -> None:
    limits = claims.AccountLimits(disk_storage=1 << 20, streams=1, consumer=1, disk_max_stream_bytes=1 << 19)
    async with platform.account(limits) as broker, connect(broker, "test") as client:
        streams = client.jetstream()
        account = (await streams.account_info()).limits
        assert (account.max_storage, account.max_streams, account.max_consumers) == (1 << 20, 1, 1)
        with pytest.raises(nats.js.errors.APIError, match=r"maximum|exceed|memory"):
            await streams.add_stream(StreamConfig(name="A", subjects=["a"], storage=StorageType.MEMORY))
        with pytest.raises(nats.js.errors.APIError, match=r"max|exceed"):
            await streams.add_stream(StreamConfig(name="A", subjects=["a"], max_bytes=1 << 20))
        await streams.add_stream(StreamConfig(name="A", subjects=["a"], max_bytes=1 << 18))
        with pytest.raises(nats.js.errors.APIError, match="maximum number of streams"):
            await streams.add_stream(StreamConfig(name="B", subjects=["b"], max_bytes=1 << 18))


async def test_tiered_limits_reach_the_server(platform: TestPlatform) -> None:
    tier = claims.JetStreamLimits(disk_storage=1 << 20, streams=2, consumer=3, max_ack_pending=7)
    limits = claims.AccountLimits(tiered_limits={"R1": tier})
    async with platform.account(limits) as broker, connect(broker, "test") as client:
        answer = await client.request("$JS.API.INFO", b"")
    assert b'"R1"' in answer.data
    assert b'"max_storage":1048576' in answer.data


async def test_connection_limits_are_enforced_by_the_server(platform: TestPlatform) -> None:
    async with platform.account(claims.AccountLimits(conn=1)) as broker, connect(broker, "first"):
        # The server closes the connection at once, and its words may not come through.
        with pytest.raises(BrokerRefused, match=r"maximum account active connections|cut the handshake short"):
            await open_client(broker, "second")


async def test_a_changed_limit_holds_at_once(platform: TestPlatform, server: AccountServer, operator: Key) -> None:
    key = Key.generate(Role.ACCOUNT)
    await server.push(claims.account_claims(operator, key.public, "acme", limits=claims.AccountLimits()))
    async with connect(Broker(platform.nats.url, claims.issue_user(key, "user")), "test") as client:
        streams = client.jetstream()
        with pytest.raises(nats.js.errors.APIError, match="not enabled"):
            await streams.account_info()
        await server.push(claims.account_claims(operator, key.public, "acme"))
        assert (await streams.account_info()).limits.max_storage == -1


async def test_a_revoked_user_cannot_come_back(platform: TestPlatform, server: AccountServer, operator: Key) -> None:
    key = Key.generate(Role.ACCOUNT)
    await server.push(claims.account_claims(operator, key.public, "acme"))
    revoked, kept = claims.issue_user(key, "revoked"), claims.issue_user(key, "kept")
    user = claims.read(revoked.jwt)["sub"]
    await server.push(claims.account_claims(operator, key.public, "acme", revoked_users={user: revoke_before_now()}))
    with pytest.raises(BrokerRefused):
        await open_client(Broker(platform.nats.url, revoked), "test")
    async with connect(Broker(platform.nats.url, kept), "test"):
        pass


async def test_an_expired_user_is_refused(platform: TestPlatform, server: AccountServer, operator: Key) -> None:
    key, user = Key.generate(Role.ACCOUNT), Key.generate(Role.USER)
    await server.push(claims.account_claims(operator, key.public, "acme"))
    token = claims.user_claims(key, user.public, "late", expires_at=1_000_000_000)
    with pytest.raises(BrokerRefused):
        await open_client(Broker(platform.nats.url, Credentials(token, user.seed)), "test")


async def test_a_signing_key_can_issue_users_for_its_account(
    platform: TestPlatform, server: AccountServer, operator: Key
) -> None:
    key, signing = Key.generate(Role.ACCOUNT), Key.generate(Role.ACCOUNT)
    await server.push(claims.account_claims(operator, key.public, "acme", signing_keys=(signing.public,)))
    user = claims.issue_user(signing, "user", issuer_account=key.public)
    async with connect(Broker(platform.nats.url, user), "test"):
        pass


async def test_permissions_of_a_user_are_enforced(platform: TestPlatform, server: AccountServer, operator: Key) -> None:
    key = Key.generate(Role.ACCOUNT)
    await server.push(claims.account_claims(operator, key.public, "acme"))
    permissions = claims.UserPermissions(
        pub=claims.Permission(allow=["mine.>"]), sub=claims.Permission(allow=["mine.>"], deny=["mine.secret"])
    )
    user = claims.issue_user(key, "user", permissions=permissions)
    problems: asyncio.Queue[str] = asyncio.Queue()
    async with connect(Broker(platform.nats.url, user), "test") as client:

        async def note(error: Exception) -> None:
            problems.put_nowait(str(error))

        client._error_cb = note
        await client.publish("theirs.a", b"")
        await client.subscribe("theirs.>")
        await client.subscribe("mine.secret")
        seen = [(await asyncio.wait_for(problems.get(), 5)).lower() for _ in range(3)]
    assert any("publish" in text and "theirs.a" in text for text in seen)
    assert any("subscription" in text and "theirs.>" in text for text in seen)
    assert any("subscription" in text and "mine.secret" in text for text in seen)


async def test_claims_that_others_signed_are_refused(server: AccountServer) -> None:
    stranger, key = Key.generate(Role.OPERATOR), Key.generate(Role.ACCOUNT)
    with pytest.raises(ClaimRefused):
        await server.push(claims.account_claims(stranger, key.public, "acme"))
    assert key.public not in await server.list()


async def test_deleting_with_a_key_that_is_not_the_operators_is_refused(platform: TestPlatform) -> None:
    async with connect(platform.nats.system, "test") as system:
        with pytest.raises(ClaimRefused, match="not trusted"):
            await AccountServer(system, Key.generate(Role.OPERATOR)).delete([platform.nats.identity.platform.public])


async def test_a_user_outside_the_system_account_is_told_what_is_missing(account: Broker, operator: Key) -> None:
    async with connect(account, "test") as client:
        with pytest.raises(BrokerUnreachable, match="system account"):
            await AccountServer(client, operator).list()
