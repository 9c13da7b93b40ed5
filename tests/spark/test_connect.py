"""The connector over Spark Connect: the server has the package, and the client needs none of it."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tenantry.embedded.ports import HOST, free_port
from tests.processes import wait_for
from tests.spark.cluster import SPARK_HOME, Application, SparkProcess, environment, python_without_the_package
from tests.spark.jet import Jet

pytestmark = pytest.mark.xdist_group("spark-cluster")

STREAMS = ["S1", "S2", "S3"]

CLIENT = """
import importlib.util, json, sys
from pyspark.sql import SparkSession

result, server, url, *output = sys.argv[1:]
assert importlib.util.find_spec("pyspark_nats") is None
spark = SparkSession.builder.remote(server).getOrCreate()
options = {"nats.url": url, "streams": "S*"}

if output:
    (folder,) = output
    events = spark.readStream.format("nats").options(**options).option("maxOffsetsPerTrigger", 60).load()
    query = events.writeStream.format("parquet").option("path", folder)
    query = query.option("checkpointLocation", folder + ".checkpoint").trigger(availableNow=True).start()
    query.awaitTermination()
    found = spark.read.parquet(folder)
    batches = [progress["batchId"] for progress in query.recentProgress]
else:
    found = spark.read.format("nats").options(**options).load()
    batches = []
rows = found.select("stream", "sequence", found.data.cast("string").cast("int")).collect()
with open(result, "w") as file:
    json.dump({"kind": type(spark).__module__, "rows": [list(row) for row in rows], "batches": batches}, file)
spark.stop()
"""


class ConnectServer:
    """What `sbin/start-connect-server.sh` starts, in the foreground."""

    def __init__(self, folder: Path) -> None:
        self.port = free_port()
        self._folder = folder
        self._environment = environment(folder, memory="768m")
        self._client = python_without_the_package(folder / "python")

    def run(self) -> Iterator[ConnectServer]:
        settings = {
            "spark.connect.grpc.binding.address": HOST,
            "spark.connect.grpc.binding.port": str(self.port),
            "spark.log.level": "WARN",
            "spark.sql.shuffle.partitions": "2",
            "spark.ui.enabled": "false",
        }
        command: list[str | Path] = [SPARK_HOME / "bin" / "spark-submit", "--master", "local[2]"]
        command += ["--class", "org.apache.spark.sql.connect.service.SparkConnectServer"]
        for name, value in settings.items():
            command += ["--conf", f"{name}={value}"]
        with SparkProcess(
            "connect", self._folder / "server", [*command, "spark-internal"], self._environment
        ) as server:
            wait_for(lambda: self._listens(server))
            yield self

    def _listens(self, server: SparkProcess) -> bool:
        server.require_running()
        try:
            socket.create_connection((HOST, self.port)).close()
        except OSError:
            return False
        return True

    def ask(self, folder: Path, *arguments: str | Path) -> Any:
        """Run the client, which has a Python without the package."""
        where = f"sc://{HOST}:{self.port}"
        with Application(folder, [self._client], CLIENT, [where, *arguments], self._environment) as client:
            return client.result()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConnectServer]:
    yield from ConnectServer(tmp_path_factory.mktemp("connect")).run()


@pytest.fixture
def filled(jet: Jet) -> Jet:
    jet.make(*STREAMS)
    for stream in STREAMS:
        jet.fill(stream, 50)
    return jet


EVERYTHING = [[stream, number, number] for stream in STREAMS for number in range(1, 51)]


def test_a_batch_read_through_a_remote_session(server: ConnectServer, filled: Jet, tmp_path: Path) -> None:
    answer = server.ask(tmp_path / "client", filled.url)
    assert answer["kind"] == "pyspark.sql.connect.session"
    assert sorted(answer["rows"]) == EVERYTHING


def test_a_streaming_query_through_a_remote_session(server: ConnectServer, filled: Jet, tmp_path: Path) -> None:
    answer = server.ask(tmp_path / "client", filled.url, tmp_path / "output")
    assert sorted(answer["rows"]) == EVERYTHING
    assert answer["batches"] == [0, 1, 2]
