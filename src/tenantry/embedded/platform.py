"""All embedded servers of one data directory as one service, and the addresses of whatever is used instead."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

from tenantry.config import Settings
from tenantry.embedded.directory import DataDirectory
from tenantry.embedded.nats_server import NatsServer
from tenantry.embedded.postgres_server import PostgresServer
from tenantry.nats.connections import Broker
from tenantry.service import forever


class EmbeddedPlatform:
    """Holds the data directory and runs, in it, each server that the settings do not name elsewhere."""

    name = "embedded"

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.directory = DataDirectory(settings.data)
        self.nats = None if settings.nats_url else NatsServer(self.directory, settings.nats_port)
        self.postgres = None if settings.database_url else PostgresServer(self.directory, settings.postgres_port)
        self._servers = [server for server in (self.nats, self.postgres) if server]

    @property
    def broker(self) -> Broker:
        """NATS, embedded or not, as the platform's own user."""
        return self.nats.platform if self.nats else Broker.from_settings(self.settings)

    @property
    def database_url(self) -> str:
        """PostgreSQL, embedded or not. Holds a password."""
        if self.settings.database_url:
            return self.settings.database_url.get_secret_value()
        assert self.postgres is not None
        return self.postgres.url

    async def start(self) -> None:
        if not self._servers:
            return
        self.directory.acquire()
        # Side by side: neither needs the other, and a first start is mostly waiting for initdb.
        outcomes = await asyncio.gather(*(server.start() for server in self._servers), return_exceptions=True)
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome
        self._write_environment_file()

    def locate(self) -> None:
        """Use the servers that another process runs in the same directory."""
        for server in self._servers:
            server.locate()

    async def run(self) -> None:
        if not self._servers:
            await forever()
        watching = [asyncio.ensure_future(server.run()) for server in self._servers]
        try:
            await asyncio.gather(*watching)
        finally:
            for watch in watching:
                watch.cancel()

    async def stop(self) -> None:
        async with AsyncExitStack() as stack:
            stack.callback(self.directory.release)
            for server in self._servers:
                stack.push_async_callback(server.stop)

    @property
    def environment_file(self) -> str:
        """A file that another shell can source to reach these servers."""
        return str(self.directory.path / "env")

    def _write_environment_file(self) -> None:
        lines = []
        if self.nats:
            lines += [
                f"export NATS_URL='{self.nats.url}'",
                f"export NATS_CREDS='{self.nats.credentials_file('platform')}'",
            ]
        if self.postgres:
            lines.append(f"export DATABASE_URL='{self.postgres.url}'")
        self.directory.write_secret(self.directory.path / "env", "\n".join(lines) + "\n")


@asynccontextmanager
async def use_platform(settings: Settings) -> AsyncIterator[EmbeddedPlatform]:
    """The platform of these settings: the one that runs already, else one that runs for as long as it is needed."""
    platform = EmbeddedPlatform(settings)
    if platform.directory.holder():
        platform.locate()
        yield platform
        return
    try:
        await platform.start()
        yield platform
    finally:
        await platform.stop()
