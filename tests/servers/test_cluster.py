"""Three servers, one stream on all of them: a node is lost in the middle of the work."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import msgspec
import nats.errors
import pytest

import nats_bulk
from nats_bulk import Message, PublishResult
from pyspark_nats import StreamsUnavailable
from tenantry.config import Settings
from tenantry.embedded.ports import free_port
from tenantry.errors import TenantryError
from tenantry.nats.connections import Broker, connect, connect_bulk
from tenantry.postgres.migrations import ensure_schema
from tenantry.tenants.administration import Administration
from tenantry.tenants.assembly import open_administration
from tenantry.tenants.moves import Stage
from tenantry.tenants.spec import TenantSpec
from tenantry.testing import TestPlatform
from tests.own_server import OwnServer
from tests.processes import wait_for
from tests.servers.conftest import StartServer
from tests.spark.engine import Query, Row
from tests.spark.jet import Jet
from tests.tenants.test_crashes import publish, read

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


async def test_a_stream_whose_server_is_away_is_not_taken_for_an_empty_one(cluster: list[OwnServer]) -> None:
    """The Spark source: a cluster lists such a stream as if it had no messages, and names it as missing."""
    names = [f"T_{number}" for number in range(6)]
    with Jet(f"nats://{cluster[0].address}") as jet:
        jet.make(*names)
        leaders = {name: jet.ask(f"STREAM.INFO.{name}")["cluster"]["leader"] for name in names}
    victim = cluster[int(leaders["T_0"].removeprefix("n"))]
    away = {name for name in names if leaders[name] == leaders["T_0"]}
    url = ",".join(f"nats://{server.address}" for server in cluster if server is not victim)
    # The cluster itself waits 4 s for the missing server before it answers.
    with Jet(url, timeout=30) as jet:
        query = Query(url, streams="T_*", failOnDataLoss="false")
        for name in names:
            jet.fill(name, 5)
        assert len(query.trigger()) == 30
        for name in names:
            jet.fill(name, 3)
        await victim.stop()
        wait_for(lambda: set(jet.ask("STREAM.LIST").get("missing", ())) == away)
        assert {row.stream for row in query.trigger()} == set(names) - away
        with pytest.raises(StreamsUnavailable, match="cannot be read: it has no leader"):
            Query(url, streams="T_*", startingOffsets="latest").trigger()
        await victim.start()
        rows: list[Row] = []

        def all_are_back() -> bool:
            rows.extend(query.trigger())
            return len(rows) >= 3 * len(away)

        wait_for(all_are_back)
        assert sorted((row.stream, row.sequence) for row in rows) == [
            (name, number) for name in sorted(away) for number in (6, 7, 8)
        ]


async def test_tenants_are_replicated_as_their_plan_says_and_moved_with_a_node_lost(
    cluster: list[OwnServer], platform: TestPlatform, tmp_path: Path
) -> None:
    async with platform.database() as database_url:
        await ensure_schema(database_url, may_migrate=True)
        # One that is not the first, which is lost on the way.
        broker = Broker(f"nats://{cluster[1].address},nats://{cluster[2].address}")
        async with open_administration(
            Settings(data=tmp_path, nats_replicas=3, asset_budget=6),
            broker=broker,
            authority=None,
            database_url=database_url,
            secret="0123456789abcdef",
        ) as administration:
            overrides = {"storage": "8MiB"}
            for tenant, plan, tier in (("acme", "pro", "pooled"), ("globex", "free", "stream")):
                put = TenantSpec(id=tenant, plan=plan, tier=tier, overrides=overrides)
                created, _ = await administration.put(put, "test")
                assert created.is_ready, created.problem
            assert await replicas(administration, "globex") == 1
            lane = await administration.lanes.resolve("acme", "events")
            await asyncio.to_thread(publish, lane, range(100))
            cluster[0].kill()
            async with asyncio.timeout(60):
                while (move := await administration.moves.newest("acme")) is None or move.stage != Stage.DONE:
                    # While leaders are elected the servers may refuse; what is on record is tried again.
                    with suppress(TenantryError):
                        await administration.move("acme", "stream", "test")
            lane = await administration.lanes.resolve("acme", "events")
            async with asyncio.timeout(60):
                while True:
                    with suppress(nats_bulk.PublishFailed):
                        again = await asyncio.to_thread(publish, lane, range(101))
                        break
            assert again.duplicates >= set(range(100))
            rows = await asyncio.to_thread(read, lane, again.sequences[-1])
            assert [number for _, number in rows] == list(range(101))
            assert await replicas(administration, "acme") == 3


async def replicas(administration: Administration, tenant: str) -> int:
    lane = await administration.lanes.resolve(tenant, "events")
    stream = await administration.backbone.platform.stream(lane.stream)
    assert stream is not None
    return int(stream["config"]["num_replicas"])
