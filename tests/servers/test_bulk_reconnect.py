"""What happens to a bulk publish and to a reader when the server goes away."""

from __future__ import annotations

import asyncio
import select
import socket
import sys
import threading
from collections.abc import Iterator

import msgspec
import pytest
from nats.aio.msg import Msg
from nats.js.api import StreamConfig

import nats_bulk
from nats_bulk import Message, PublishResult
from tenantry.nats import claims
from tenantry.nats.accounts import AccountServer, revoke_before_now
from tenantry.nats.connections import Broker, connect, connect_bulk
from tenantry.nats.keys import Key, Role
from tenantry.testing import TestPlatform
from tests.own_server import OwnServer
from tests.processes import wait_for
from tests.servers.conftest import StartServer

STREAM = b'{"name": "EVENTS", "subjects": ["events.>"], "allow_direct": true}'


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


async def test_what_a_server_refuses_while_it_shuts_down_is_sent_again_in_order(start_server: StartServer) -> None:
    """It ends its streams before its connections, and in between nobody takes what we publish."""
    server, broker = await with_stream(start_server)

    def without_pause() -> Iterator[Message]:
        number = 0
        while not stopped.is_set() or number % 1000:
            if number == 5000:
                flowing.set()
            yield Message("events.a", b"%d" % number, f"id-{number}")
            number += 1

    flowing, stopped = threading.Event(), threading.Event()
    with connect_bulk(broker, "test") as connection:
        for _ in range(5):
            flowing.clear()
            stopped.clear()
            connection.request("$JS.API.STREAM.DELETE.EVENTS", b"")
            connection.request("$JS.API.STREAM.CREATE.EVENTS", STREAM)
            publishing = asyncio.create_task(asyncio.to_thread(nats_bulk.publish, connection, without_pause()))
            await asyncio.to_thread(flowing.wait, 60)
            await server.stop()
            await server.start()
            stopped.set()
            result = await publishing
            result.raise_for_errors()
            assert result.sequences == list(range(1, len(result.sequences) + 1))


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
    messages = Pausing(4000, with_ids=False)
    with connect_bulk(broker, "test") as connection:
        with server.frozen():
            publishing = asyncio.create_task(asyncio.to_thread(nats_bulk.publish, connection, messages, window=1 << 20))
            await asyncio.to_thread(messages.halfway.wait, 60)
            server.kill()
        await server.start()
        messages.go_on.set()
        result = await publishing
        assert result.errors
        assert not any(error.certain for error in result.errors.values())
        stored = [sequence for sequence in result.sequences if sequence]
        assert len(stored) == len(set(stored))
        assert len(stored) + len(result.errors) == 4000
        info = msgspec.json.decode(connection.request("$JS.API.STREAM.INFO.EVENTS", b""))
        assert len(stored) <= info["state"]["messages"] <= 4000


async def test_acknowledgements_that_came_before_the_end_still_count(
    start_server: StartServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As if the source had taken longer than it does here.
    monkeypatch.setattr(sys.modules["nats_bulk.publish"], "UNREAD_SECONDS", 0.0)
    server, broker = await with_stream(start_server)
    messages = Pausing(2000, with_ids=False)
    with connect_bulk(broker, "test") as connection:
        publishing = asyncio.create_task(asyncio.to_thread(nats_bulk.publish, connection, messages, window=4000))
        await asyncio.to_thread(messages.halfway.wait, 60)
        await asyncio.to_thread(wait_for, lambda: _acknowledgements_unread(connection) >= 1000)
        await server.stop()
        await server.start()
        messages.go_on.set()
        result = await publishing
    result.raise_for_errors()
    assert result.sequences == list(range(1, 2001))


def _acknowledgements_unread(connection: nats_bulk.Connection) -> int:
    assert connection._socket is not None
    return connection._socket.recv(1 << 20, socket.MSG_PEEK).count(b'"seq"')


async def test_a_server_that_stays_away_ends_the_wait_with_an_answer_for_every_message(
    start_server: StartServer,
) -> None:
    server, broker = await with_stream(start_server)
    messages = Pausing(100, with_ids=True)
    with connect_bulk(broker, "test", reconnect_for=0.2) as connection:
        with server.frozen():
            publishing = asyncio.create_task(asyncio.to_thread(nats_bulk.publish, connection, messages, window=4 * 16))
            await asyncio.to_thread(messages.halfway.wait, 60)
            server.kill()
        messages.go_on.set()
        result = await publishing
    assert set(result.errors) == set(range(100))
    # What was under way may have been stored; what came later was never sent.
    assert not result.errors[0].certain
    assert result.errors[99].certain


async def test_a_server_that_stands_still_is_left_for_another(start_server: StartServer) -> None:
    """It neither answers nor ends the connection: only its silence tells."""
    silent, broker = await with_stream(start_server)
    _, other = await with_stream(start_server)
    both = Broker(f"{broker.url},{other.url}")
    with connect_bulk(both, "test", timeout=1.0) as connection, silent.frozen():
        result = nats_bulk.publish(connection, [Message("events.a", b"%d" % n, f"{n}") for n in range(100)])
        result.raise_for_errors()
        (batch,) = nats_bulk.read_range(connection, "EVENTS", 1, 100)
    assert batch.payloads == [b"%d" % n for n in range(100)]


async def test_nothing_follows_a_message_that_was_sent_in_part(start_server: StartServer) -> None:
    server, broker = await with_stream(start_server)
    with connect_bulk(broker, "test", timeout=0.3) as connection:
        with server.frozen():
            with pytest.raises(nats_bulk.ConnectionLost):
                connection.send(b"PUB events.a 1000000\r\n" + bytes(64 << 20))
            with pytest.raises(nats_bulk.ConnectionLost):
                connection.send(b"PING\r\n")
        connection.timeout = 30.0
        connection.reconnect()
        assert b"streams" in connection.request("$JS.API.INFO", b"")


async def test_answers_that_come_too_late_do_not_confuse_what_follows(start_server: StartServer) -> None:
    server, broker = await with_stream(start_server)
    messages = [Message("events.a", b"%d" % number, f"id-{number}") for number in range(100)]
    with connect_bulk(broker, "test", timeout=0.5, reconnect_for=0.1) as connection:
        with server.frozen():
            result = nats_bulk.publish(connection, messages)
            assert {(error.code, error.certain) for error in result.errors.values()} == {(503, False)}
        connection.timeout = connection.reconnect_for = 30.0
        again = nats_bulk.publish(connection, messages)
        assert again.sequences == list(range(1, 101))
        assert again.duplicates <= set(range(100))
        (batch,) = nats_bulk.read_range(connection, "EVENTS", 1, 100)
        assert len(batch) == 100


async def _listen(_: Msg) -> None:
    """And say nothing."""


async def test_a_listener_that_does_not_answer_is_not_taken_for_a_stream(account: Broker) -> None:
    async with connect(account, "listener") as listener:
        await listener.subscribe("heard.by.nobody.that.stores", cb=_listen)
        await listener.flush()
        with connect_bulk(account, "test", timeout=0.3) as connection:
            result = await asyncio.to_thread(
                nats_bulk.publish, connection, [Message("heard.by.nobody.that.stores", b"", "1")]
            )
    assert (result.errors[0].code, result.errors[0].certain) == (504, False)


async def test_a_listener_that_answers_nonsense_spoils_only_its_own_subject(account: Broker) -> None:
    async with connect(account, "listener") as listener:
        await listener.jetstream().add_stream(StreamConfig(name="EVENTS", subjects=["events.>"]))

        async def answer(message: Msg) -> None:
            await message.respond(b"thanks!")

        await listener.subscribe("spoilt.a", cb=answer)
        await listener.flush()
        with connect_bulk(account, "test") as connection:
            messages = [Message("events.a", b"", "1"), Message("spoilt.a", b"", "2"), Message("events.a", b"", "3")]
            result = await asyncio.to_thread(nats_bulk.publish, connection, messages)
    assert result.sequences == [1, 0, 2]
    assert (result.errors[1].code, result.errors[1].certain) == (502, False)
    assert "thanks!" in result.errors[1].description


@pytest.mark.skipif(not hasattr(select, "POLLRDHUP"), reason="only Linux tells that the other end has closed")
async def test_what_was_acknowledged_before_a_slow_source_got_us_cut_off_is_not_stored_again(
    start_server: StartServer,
) -> None:
    server = await start_server('ping_interval: "100ms"\nping_max: 1')
    broker = Broker(f"nats://{server.address}")
    # So short that a message which is sent again after the pause would be stored again.
    config = StreamConfig(name="EVENTS", subjects=["events.>"], allow_direct=True, duplicate_window=0.1)
    async with connect(broker, "test") as client:
        await client.jetstream().add_stream(config)
    with connect_bulk(broker, "test") as connection:

        def slowly() -> Iterator[Message]:
            for number in range(1100):
                if number == 1050:
                    _until_cut_off(connection)
                yield Message("events.a", b"%d" % number, f"{number}")

        (await asyncio.to_thread(nats_bulk.publish, connection, slowly())).raise_for_errors()
        info = msgspec.json.decode(connection.request("$JS.API.STREAM.INFO.EVENTS", b""))
    assert info["state"]["messages"] == 1100


def _until_cut_off(connection: nats_bulk.Connection) -> None:
    """Nobody reads meanwhile, so the server's pings stay unanswered and it gives up on us."""
    assert connection._socket is not None
    poll = select.poll()
    poll.register(connection._socket, select.POLLRDHUP)
    assert poll.poll(30_000), "the server did not give up on us"


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
    assert "refused us" in result.errors[999].description
