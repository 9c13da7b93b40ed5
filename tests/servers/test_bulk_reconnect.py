"""What happens to a bulk publish and to a reader when the server goes away."""

from __future__ import annotations

import asyncio
import threading

import pytest
from nats.js.api import StreamConfig

import nats_bulk
from nats_bulk import Message, PublishResult
from tenantry.nats.connections import Broker, connect, connect_bulk
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

    def __iter__(self):  # type: ignore[no-untyped-def]
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
        info = connection.request("$JS.API.STREAM.INFO.EVENTS", b"")
        assert b'"messages":' in info


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
    assert all(sequence or not result.errors[n].certain for n, sequence in enumerate(result.sequences))


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
