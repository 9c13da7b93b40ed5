"""Three servers, one stream on all of them: a node is lost in the middle of the work."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import msgspec
import nats.errors
import pytest

import nats_bulk
from nats_bulk import Message, PublishResult
from tenantry.embedded.ports import free_port
from tenantry.errors import TenantryError
from tenantry.nats.connections import Broker, connect, connect_bulk
from tests.own_server import OwnServer
from tests.servers.conftest import StartServer

COUNT = 20_000


@pytest.fixture
async def cluster(start_server: StartServer) -> list[OwnServer]:
    ports = [free_port() for _ in range(3)]
    routes = ", ".join(f'"nats://127.0.0.1:{port}"' for port in ports)
    settings = "server_name: n{number}\ncluster {{ name: C, listen: 127.0.0.1:{port}, routes: [{routes}] }}"
    servers = [
        await start_server(settings.format(number=number, port=port, routes=routes))
        for number, port in enumerate(ports)
    ]
    await _until_stream_exists(Broker(f"nats://{servers[0].address}"))
    return servers


async def _until_stream_exists(broker: Broker) -> None:
    config = {"name": "EVENTS", "subjects": ["events.>"], "num_replicas": 3, "allow_direct": True, "storage": "file"}
    async with asyncio.timeout(60):
        while True:
            try:
                async with connect(broker, "test") as client:
                    answer = await client.request(
                        "$JS.API.STREAM.CREATE.EVENTS", msgspec.json.encode(config), timeout=5
                    )
                if "error" not in msgspec.json.decode(answer.data):
                    return
            except (TenantryError, nats.errors.Error, TimeoutError):
                pass
            await asyncio.sleep(0.1)


async def test_losing_the_node_we_talk_to_loses_and_repeats_nothing(cluster: list[OwnServer]) -> None:
    halfway, go_on = threading.Event(), threading.Event()

    def messages() -> Iterator[Message]:
        for number in range(COUNT):
            if number == COUNT // 2:
                halfway.set()
                assert go_on.wait(60)
            yield Message("events.a", b"%d" % number, f"id-{number}")

    # Only one address is given: the others are learnt from the server.
    with connect_bulk(Broker(f"nats://{cluster[0].address}"), "test", timeout=10) as connection:
        publishing = asyncio.create_task(asyncio.to_thread(nats_bulk.publish, connection, messages(), window=1 << 20))
        await asyncio.to_thread(halfway.wait, 60)
        cluster[0].kill()
        go_on.set()
        result: PublishResult = await publishing
        missing = list(result.errors)
        async with asyncio.timeout(60):
            # While a new leader is elected the server refuses; what was refused is sent again, as a relay would.
            while missing:
                again = [Message("events.a", b"%d" % number, f"id-{number}") for number in missing]
                retried = await asyncio.to_thread(nats_bulk.publish, connection, again)
                missing = [missing[position] for position in retried.errors]
        info = msgspec.json.decode(connection.request("$JS.API.STREAM.INFO.EVENTS", b""))
        batches = nats_bulk.read_range(connection, "EVENTS", 1, info["state"]["last_seq"])
        stored = [int(body) for batch in batches for body in batch.payloads]
    assert sorted(stored) == list(range(COUNT))
