"""Connections of a worker process are kept and shared, and not more than so many."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from urllib.request import urlopen

import pytest
from pyspark.sql import SparkSession

from nats_bulk import Credentials
from pyspark_nats import Access
from pyspark_nats.connections import Connections
from tenantry.embedded.ports import HOST, free_port
from tests.own_server import OwnServer
from tests.spark.jet import Jet


def test_those_who_show_the_same_credentials_share_a_connection(jet: Jet) -> None:
    connections = Connections(most=2)
    first = connections.use(Access(jet.url))
    assert connections.use(Access(jet.url, api_prefix="$JS.hub.API")) is first
    second = connections.use(Access(jet.url, Credentials(token="another")))
    assert second is not first
    connections.use(Access(jet.url))
    third = connections.use(Access(jet.url, Credentials(token="a third")))
    assert len(connections) == 2
    assert connections.use(Access(jet.url)) is first, "the one unused for longest goes"
    assert third is not second
    connections.close()
    assert len(connections) == 0


@pytest.fixture
async def counting(tmp_path: Path) -> AsyncIterator[tuple[OwnServer, str]]:
    """A server that tells how many have connected."""
    (tmp_path / "counting").mkdir()
    port = free_port()
    server = OwnServer(tmp_path / "counting", f"http: {HOST}:{port}")
    await server.start()
    yield server, f"http://{HOST}:{port}/varz"
    await server.stop()


def test_tasks_of_many_batches_use_few_connections(
    spark: SparkSession, counting: tuple[OwnServer, str], tmp_path: Path
) -> None:
    server, statistics = counting
    with Jet(f"nats://{server.address}") as jet:
        jet.make("A", "B", "C", "D")
        for name in "ABCD":
            jet.fill(name, 50)
        frame = spark.readStream.format("nats").options(
            **{"nats.url": jet.url, "streams": "*", "maxOffsetsPerTrigger": "20", "minPartitions": "2"}
        )
        query = frame.load().writeStream.format("noop").option("checkpointLocation", str(tmp_path / "checkpoint"))
        running = query.trigger(availableNow=True).start()
        running.awaitTermination()
        assert sum(progress["numInputRows"] for progress in running.recentProgress) == 200
    with urlopen(statistics) as answer:
        total = json.load(answer)["total_connections"]
    # The test's own, the driver's, and one of each Python worker, of 20 tasks.
    assert total <= 8
