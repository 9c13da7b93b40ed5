from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.servers.conftest import OwnServer


@pytest.fixture
async def own_nats(tmp_path: Path) -> AsyncIterator[OwnServer]:
    """A server without operator mode, which a test may kill."""
    folder = tmp_path / "nats"
    folder.mkdir()
    server = OwnServer(folder, "")
    await server.start()
    yield server
    await server.stop()
