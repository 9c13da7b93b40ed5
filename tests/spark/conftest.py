"""Spark is started once per worker, and shared by its tests."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from tests.own_server import OwnServer
from tests.spark.cluster import Cluster
from tests.spark.jet import Jet

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


# These JVMs live for seconds: a compiler and a collector that begin at once are worth more than fast ones.
os.environ.setdefault("JAVA_TOOL_OPTIONS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    from tenantry.pipelines.session import local_session

    session = local_session(
        "tests",
        tmp_path_factory.mktemp("spark"),
        cores=2,
        config={"spark.sql.shuffle.partitions": "2", "spark.log.level": "ERROR"},
    )
    yield session
    session.stop()


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """One for all tests of the group spark-cluster, which run in one worker."""
    with Cluster(tmp_path_factory.mktemp("cluster")) as running:
        yield running


@pytest.fixture
def jet(own_nats: OwnServer) -> Iterator[Jet]:
    """JetStream on a server of the test's own."""
    with Jet(f"nats://{own_nats.address}") as opened:
        yield opened
