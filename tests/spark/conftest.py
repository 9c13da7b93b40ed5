"""A cluster for the tests that need one, and JetStream on a server of each test's own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.own_server import OwnServer
from tests.spark.cluster import Cluster
from tests.spark.jet import Jet


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
