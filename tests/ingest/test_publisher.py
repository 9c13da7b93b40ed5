"""The connection that ingest keeps: by every way in that NATS has, and again when it was lost."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from uuid import uuid4

import pytest
import trustme

from nats_bulk import Credentials
from tenantry.errors import EventTooLarge
from tenantry.ingest.publisher import Publisher
from tenantry.ingest.reading import Message
from tenantry.ingest.tracing import start_trace
from tenantry.nats.connections import Broker, connect
from tenantry.nats.keys import Key, Role
from tests.ingest.outage import until
from tests.own_server import OwnServer
from tests.servers.conftest import StartServer, start_server
from tests.servers.test_cluster import cluster

__all__ = ["cluster", "start_server"]

Open = Callable[[Broker], Publisher]


@pytest.fixture
async def open_publisher() -> AsyncIterator[Open]:
    async with AsyncExitStack() as stack:

        def open(broker: Broker) -> Publisher:
            publisher = Publisher(broker, "test")
            stack.push_async_callback(publisher.close)
            return publisher

        yield open


def message(id: str, subject: str = "orders.created", document: bytes = b"{}") -> Message:
    header = f"NATS/1.0\r\nNats-Msg-Id: {id}\r\n\r\n".encode()
    return Message(id, "created", subject, header, document, len(header) + len(document), start_trace())


async def require_stored(publisher: Publisher, broker: Broker) -> None:
    async with connect(broker, "test") as client:
        await client.jetstream().add_stream(name="ORDERS", subjects=["orders.>"])
    assert await publisher.is_linked()
    once, twice = str(uuid4()), str(uuid4())
    outcome = await publisher.publish([message(twice), message(once), message(twice)])
    assert (outcome.errors, outcome.duplicates) == ({}, 1)


async def test_by_token_key_and_jwt(open_publisher: Open, start_server: StartServer, account: Broker) -> None:
    key, other = Key.generate(Role.USER), Key.generate(Role.USER)
    token = await start_server('authorization { token: "hidden" }')
    keyed = await start_server(f"authorization {{ users: [ {{ nkey: {key.public} }} ] }}")
    for broker in (
        Broker(f"nats://{token.address}", Credentials(token="hidden")),
        Broker(f"nats://hidden@{token.address}"),
        Broker(f"nats://{keyed.address}", Credentials(seed=key.seed)),
        Broker(f"nats://127.0.0.1:9,{token.address}", Credentials(token="hidden")),
        account,
    ):
        await require_stored(open_publisher(broker), broker)
    for broker in (
        Broker(f"nats://{token.address}", Credentials(token="wrong")),
        Broker(f"nats://{keyed.address}", Credentials(seed=other.seed)),
        Broker("nats://127.0.0.1:9"),
    ):
        assert not await open_publisher(broker).is_linked()


async def test_by_tls(open_publisher: Open, start_server: StartServer, tmp_path: Path) -> None:
    authority, certificate = trustme.CA(), tmp_path / "server.pem"
    authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(str(certificate))
    server = await start_server(f'tls {{ cert_file: "{certificate}", key_file: "{certificate}" }}')
    plain = await start_server("")
    trusting = ssl.create_default_context()
    authority.configure_trust(trusting)
    broker = Broker(f"tls://{server.address}", tls=trusting)
    await require_stored(open_publisher(broker), broker)
    assert not await open_publisher(Broker(f"tls://{server.address}")).is_linked()
    # What was asked for is not done without.
    assert not await open_publisher(Broker(f"tls://{plain.address}")).is_linked()


async def test_a_lost_connection_is_made_again_and_what_waited_is_uncertain(
    open_publisher: Open, start_server: StartServer
) -> None:
    server = await start_server("")
    broker = Broker(f"nats://{server.address}")
    publisher = open_publisher(broker)
    await require_stored(publisher, broker)
    with server.frozen():
        outcome = await publisher.publish([message("3")])
    assert not outcome.errors[0].certain
    await until(lambda: publisher.generation == 2)
    server.kill()
    refused = await publisher.publish([message("4")])
    assert list(refused.errors) == [0]
    await server.start()
    await until(lambda: publisher.generation == 3)
    assert (await publisher.publish([message("5")])).errors == {}


async def test_when_its_server_is_gone_another_of_the_cluster_is_used(
    open_publisher: Open, cluster: list[OwnServer]
) -> None:
    publisher = open_publisher(Broker(f"nats://{cluster[0].address}"))
    assert await publisher.is_linked()
    assert (await publisher.publish([message("1", "events.created")])).errors == {}
    cluster[0].kill()
    await until(lambda: publisher.generation == 2)
    async with asyncio.timeout(60):
        # The stream may have to choose another leader first.
        while (await publisher.publish([message("2", "events.created")])).errors:
            await asyncio.sleep(0.05)


async def test_nothing_of_a_request_is_sent_if_part_of_it_is_too_large(
    open_publisher: Open, start_server: StartServer
) -> None:
    server = await start_server("max_payload: 1000")
    broker = Broker(f"nats://{server.address}")
    publisher = open_publisher(broker)
    await require_stored(publisher, broker)
    with pytest.raises(EventTooLarge) as refused:
        await publisher.publish([message("a"), message("b", document=b"x" * 1000)])
    assert refused.value.index == 1
    assert publisher.is_idle
    async with connect(broker, "test") as client:
        assert (await client.jetstream().stream_info("ORDERS")).state.messages == 2


async def test_where_nobody_listens_that_is_said(open_publisher: Open, account: Broker) -> None:
    publisher = open_publisher(account)
    assert await publisher.is_linked()
    outcome = await publisher.publish([message("1", "nobody.there")])
    assert (outcome.errors[0].code, outcome.errors[0].certain) == (503, True)
