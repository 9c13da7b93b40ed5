"""What happens to a bulk publish and to a reader when the server goes away."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import msgspec
import pytest
from nats.js.api import StreamConfig

import nats_bulk
from nats_bulk import Message, PublishResult
from tenantry.nats import claims
from tenantry.nats.accounts import AccountServer, revoke_before_now
from tenantry.nats.connections import Broker, connect, connect_bulk
from tenantry.nats.keys import Key, Role
from tenantry.testing import TestPlatform
from tests.servers.conftest import OwnServer, StartServer


async def with_stream(start_server: StartServer) -> tuple[OwnServer, Broker]:
    server = await start_server("")
    broker = Broker(f"nats://{server.address}")
    async with connect(broker, "test") as client:
        await client.jetstream().add_stream(StreamConfig(name="EVENTS", subjects=["events.>"], allow_direct=True))
    return server, broker


class Pausing:
    """Messages whose source waits in the middle until it is told to go on."""

    def __init__(self, count: int, with_ids: bool) -> None:
        self.halfway = threading.Event()
        self.go_on = threading.Event()
        self._count = count
        self._with_ids = with_ids

    def __iter__(self) -> Iterator[Message]:
        for number in range(self._count):
            if number == self._count // 2:
                self.halfway.set()
                assert self.go_on.wait(60)
            yield Message("events.a", b"%d" % number, f"id-{number}" if self._with_ids else None)


@pytest.mark.parametrize("kill", [False, True], ids=["stopped", "killed"])
async def test_messages_with_ids_survive_a_server_restart_once_and_in_order(
    start_server: StartServer, kill: bool
) -> None:
    server, broker = await with_stream(start_server)
    messages = Pausing(20_000, with_ids=True)
    with connect_bulk(broker, "test") as connection:
        publishing = asyncio.create_task(asyncio.to_thread(nats_bulk.publish, connection, messages, window=1 << 20))
        await asyncio.to_thread(messages.halfway.wait, 60)
        if kill:
            server.kill()
        await server.stop()
        await server.start()
        messages.go_on.set()
        result: PublishResult = await publishing
        result.raise_for_errors()
        stored = [body for batch in nats_bulk.read_range(connection, "EVENTS", 1, 20_000) for body in batch.payloads]
    assert stored == [b"%d" % number for number in range(20_000)]


async def test_messages_without_ids_are_reported_as_uncertain_instead_of_sent_twice(start_server: StartServer) -> None:
    server, broker = await with_stream(start_server)
    messages = Pausing(2000, with_ids=False)
    with connect_bulk(broker, "test") as connection:
        publishing = asyncio.create_task(asyncio.to_thread(nats_bulk.publish, connection, messages, window=1 << 20))
        await asyncio.to_thread(messages.halfway.wait, 60)
        await server.stop()
        await server.start()
        messages.go_on.set()
        result = await publishing
        stored = len({sequence for sequence in result.sequences if sequence})
        assert result.errors
        assert not any(error.certain for error in result.errors.values())
        assert stored + len(result.errors) == 2000
        info = msgspec.json.decode(connection.request("$JS.API.STREAM.INFO.EVENTS", b""))
        assert stored <= info["state"]["messages"] <= 2000


async def test_a_server_that_stays_away_ends_the_wait_with_an_answer_for_every_message(
    start_server: StartServer,
) -> None:
    server, broker = await with_stream(start_server)
    messages = Pausing(100, with_ids=True)
    with connect_bulk(broker, "test", reconnect_for=0.2) as connection:
        publishing = asyncio.create_task(asyncio.to_thread(nats_bulk.publish, connection, messages, window=16))
        await asyncio.to_thread(messages.halfway.wait, 60)
        await server.stop()
        messages.go_on.set()
        result = await publishing
    assert len(result.sequences) == 100
    assert {n for n, sequence in enumerate(result.sequences) if not sequence} == set(result.errors)
    # What was under way may have been stored; what came later was never sent.
    assert {error.certain for error in result.errors.values()} == {True, False}
    assert result.errors[99].certain


async def test_a_connection_that_was_cut_while_idle_is_restored_by_the_next_call(start_server: StartServer) -> None:
    server, broker = await with_stream(start_server)
    with connect_bulk(broker, "test") as connection:
        nats_bulk.publish(connection, [Message("events.a", b"1", "1")]).raise_for_errors()
        await server.stop()
        await server.start()
        nats_bulk.publish(connection, [Message("events.a", b"2", "2")]).raise_for_errors()
        await server.stop()
        await server.start()
        (batch,) = nats_bulk.read_range(connection, "EVENTS", 1, 2)
    assert batch.payloads == [b"1", b"2"]


async def test_an_idle_connection_answers_pings_when_it_is_used_again(start_server: StartServer) -> None:
    server = await start_server('ping_interval: "50ms"\nping_max: 100')
    with connect_bulk(Broker(f"nats://{server.address}"), "test") as connection:
        # Wait for pings to pile up: they are what arrives without being asked for.
        assert connection.receive(timeout=0.3) == []
        assert b"streams" in connection.request("$JS.API.INFO", b"")


async def test_a_reader_goes_on_after_a_restart_in_the_middle(start_server: StartServer) -> None:
    server, broker = await with_stream(start_server)
    with connect_bulk(broker, "test") as connection:
        nats_bulk.publish(connection, [Message("events.a", b"%d" % n, f"{n}") for n in range(500)]).raise_for_errors()
        read: list[bytes] = []
        for number, batch in enumerate(nats_bulk.read_range(connection, "EVENTS", 1, 500, batch=100)):
            read += batch.payloads
            if number == 1:
                server.kill()
                await server.stop()
                await server.start()
    assert read == [b"%d" % n for n in range(500)]


async def test_a_server_that_keeps_cutting_us_off_is_not_tried_for_ever(start_server: StartServer) -> None:
    """A protocol line longer than the server takes makes it close the connection, each time anew."""
    server = await start_server("max_control_line: 300")
    broker = Broker(f"nats://{server.address}")
    async with connect(broker, "test") as client:
        await client.jetstream().add_stream(StreamConfig(name="EVENTS", subjects=["events.>"]))
    with connect_bulk(broker, "test") as connection:
        result = nats_bulk.publish(connection, [Message("events." + "a" * 400, b"", "1")])
    assert not result.errors[0].certain
    assert "ontrol" in result.errors[0].description


async def test_credentials_that_expire_on_the_way_end_with_an_answer_for_every_message(
    platform: TestPlatform,
) -> None:
    operator = platform.nats.identity.operator_signing
    key = Key.generate(Role.ACCOUNT)
    async with connect(platform.nats.system, "test") as system:
        accounts = AccountServer(system, operator)
        await accounts.push(claims.account_claims(operator, key.public, "acme"))
        owner = Broker(platform.nats.url, claims.issue_user(key, "owner"))
        async with connect(owner, "test") as client:
            await client.jetstream().add_stream(StreamConfig(name="EVENTS", subjects=["events.>"]))
        messages = Pausing(1000, with_ids=True)
        with connect_bulk(owner, "test") as connection:
            publishing = asyncio.create_task(asyncio.to_thread(nats_bulk.publish, connection, messages, window=64))
            await asyncio.to_thread(messages.halfway.wait, 60)
            user = claims.read(owner.credentials.jwt)["sub"]
            revoked = {user: revoke_before_now()}
            await accounts.push(claims.account_claims(operator, key.public, "acme", revoked_users=revoked))
            messages.go_on.set()
            result = await publishing
    assert all(result.sequences[:400])
    assert result.errors[999].code == 503
    assert "refused the connection" in result.errors[999].description
