"""Servers with a configuration of their own, for what the shared one does not do: other ways in, TLS, restarts."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from tests.own_server import OwnServer

StartServer = Callable[[str], Awaitable[OwnServer]]


@pytest.fixture
async def start_server(tmp_path: Path) -> AsyncIterator[StartServer]:
    servers: list[OwnServer] = []

    async def start(settings: str = "") -> OwnServer:
        folder = tmp_path / f"server-{len(servers)}"
        folder.mkdir()
        server = OwnServer(folder, settings)
        servers.append(server)
        await server.start()
        return server

    yield start
    for server in servers:
        await server.stop()
