"""JetStream on a server of each test's own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.own_server import OwnServer
from tests.spark.jet import Jet


@pytest.fixture
def jet(own_nats: OwnServer) -> Iterator[Jet]:
    """JetStream on a server of the test's own."""
    with Jet(f"nats://{own_nats.address}") as opened:
        yield opened
