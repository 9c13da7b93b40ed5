"""All embedded servers of one data directory as one service, and the addresses of whatever is used instead."""

from __future__ import annotations

import asyncio
import os
import secrets
import shlex
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, nullcontext
from typing import Final

from tenantry.config import Settings
from tenantry.embedded.directory import DataDirectory
from tenantry.embedded.nats_server import NatsServer
from tenantry.embedded.ports import settle_port
from tenantry.embedded.postgres_server import PostgresServer
from tenantry.errors import ConfigError, DataDirectoryInUse
from tenantry.nats.authority import Authority
from tenantry.nats.connections import Broker
from tenantry.nats.keys import Key, Role
from tenantry.service import forever

JOIN_SECONDS: Final = 60.0
LOOK_SECONDS: Final = 0.05


class EmbeddedPlatform:
    """Holds the data directory and runs, in it, each server that the settings do not name elsewhere."""

    name = "embedded"

    def __init__(self, settings: Settings, *, with_nats: bool = True) -> None:
        self.settings = settings
        self._is_whole = with_nats
        self.directory = DataDirectory(settings.data)
        needs_nats = with_nats and not settings.nats_url
        self.nats = NatsServer(self.directory, settings.nats_port, settings.nats_leaf_port) if needs_nats else None
        self.postgres = None if settings.database_url else PostgresServer(self.directory, settings.postgres_port)
        self._servers = [server for server in (self.nats, self.postgres) if server]

    @property
    def uses_directory(self) -> bool:
        return bool(self._servers)

    @property
    def broker(self) -> Broker:
        """NATS, embedded or not, as the platform's own user."""
        return self.nats.platform if self.nats else Broker.from_settings(self.settings)

    @property
    def authority(self) -> Authority | None:
        """What it takes to make accounts; none if NATS is not embedded and not in operator mode."""
        return self.nats.authority if self.nats else Authority.from_settings(self.settings)

    @property
    def secret(self) -> str:
        """The master secret."""
        if self.settings.secret:
            return self.settings.secret.get_secret_value()
        if not self.uses_directory:
            raise ConfigError(
                "expected a master secret, for no data directory keeps one when all servers are your own; "
                "make one with `openssl rand -base64 32`, keep it safe, and set TENANTRY_SECRET"
            )
        return self.directory.secret("master.secret", lambda: secrets.token_urlsafe(32))

    @property
    def database_url(self) -> str:
        """PostgreSQL, embedded or not, for psycopg. Holds a password."""
        if self.settings.database_url:
            return self.settings.database_url.get_secret_value()
        assert self.postgres is not None
        return self.postgres.address()

    def settle_api_port(self) -> int:
        """The port of the HTTP API, which stays the same from start to start."""
        if self.uses_directory:
            return settle_port(self.directory, "api", self.settings.api_port)
        return self.settings.api_port or 0

    async def start(self) -> None:
        if not self._servers:
            return
        self.directory.acquire()
        # Side by side: neither needs the other, and a first start is mostly waiting for initdb.
        outcomes = await asyncio.gather(*(server.start() for server in self._servers), return_exceptions=True)
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome
        if self._is_whole:
            self._write_environment_file()
        self.directory.remember(ready={"process": os.getpid(), "servers": [each.name for each in self._servers]})

    def is_run_by(self, process: str) -> bool:
        """Whether that process has started all servers that we need."""
        ready = self.directory.remembered().get("ready", {})
        return str(ready.get("process")) == process and {each.name for each in self._servers} <= {*ready["servers"]}

    def locate(self) -> None:
        """Use the servers that another process runs in the same directory."""
        for server in self._servers:
            server.locate()

    async def run(self) -> None:
        if not self._servers:
            await forever()
        watching = [asyncio.ensure_future(server.child.until_ended()) for server in self._servers]
        try:
            await asyncio.gather(*watching)
        finally:
            for watch in watching:
                watch.cancel()

    async def stop(self) -> None:
        async with AsyncExitStack() as stack:
            stack.callback(self.directory.release)
            for server in self._servers:
                stack.push_async_callback(server.child.stop)

    def kill(self) -> None:
        for server in self._servers:
            server.child.kill()

    @property
    def environment_file(self) -> str:
        """A file that another shell can source to reach these servers."""
        return str(self.directory.path / "env")

    @property
    def account_key(self) -> Key | None:
        """The key of the account that holds shared streams, where it is known; it signs users that may only read."""
        if self.nats:
            return self.nats.identity.platform
        if (file := self.settings.nats_account_key) is None:
            return None
        try:
            key = Key(file.read_text().strip())
            key.require(Role.ACCOUNT)
        except (OSError, ValueError) as problem:
            raise ConfigError(
                f"cannot use the key of the platform's account: {problem}; check nats_account_key"
            ) from None
        return key

    def environment(self) -> dict[str, str]:
        """Variables with which another process uses these servers."""
        variables: dict[str, str] = {}
        if self.nats:
            variables |= {
                "NATS_URL": self.nats.url,
                "NATS_CREDS": str(self.nats.credentials_file("platform")),
                "TENANTRY_NATS_SYSTEM_CREDS": str(self.nats.credentials_file("system")),
                "TENANTRY_NATS_OPERATOR_KEY": str(self.directory.secret_path("operator-signing.nk")),
                "TENANTRY_NATS_ACCOUNT_KEY": str(self.directory.secret_path("platform.nk")),
            }
        if self.postgres:
            variables["DATABASE_URL"] = self.postgres.url
        return variables | {"TENANTRY_SECRET": self.secret}

    def _write_environment_file(self) -> None:
        lines = [f"export {name}={shlex.quote(value)}\n" for name, value in self.environment().items()]
        self.directory.write(self.directory.path / "env", "".join(lines))


@asynccontextmanager
async def use_platform(settings: Settings, *, with_nats: bool = True) -> AsyncIterator[EmbeddedPlatform]:
    """The platform of these settings: the one that runs already, else one that runs for as long as it is needed.

    Commands that are given at the same time share one: whoever started it stops it when the last has done its work.
    """
    platform = EmbeddedPlatform(settings, with_nats=with_nats)
    deadline = time.monotonic() + JOIN_SECONDS
    while True:
        if platform.uses_directory and (holder := platform.directory.holder()):
            with platform.directory.joined() as is_taken_in:
                if is_taken_in and platform.is_run_by(holder):
                    platform.locate()
                    yield platform
                    return
        elif await _start(platform):
            break
        if time.monotonic() > deadline:
            raise DataDirectoryInUse(
                f"another process holds the data directory {platform.directory.path}, and its servers are not ready; "
                "try again, or use another directory: --data DIR"
            )
        # It is just starting, or about to end.
        await asyncio.sleep(LOOK_SECONDS)
    try:
        yield platform
    finally:
        async with platform.directory.alone() if platform.uses_directory else nullcontext():
            await platform.stop()


async def _start(platform: EmbeddedPlatform) -> bool:
    """Whether we were the first to do so."""
    try:
        await platform.start()
    except DataDirectoryInUse:
        return False
    except BaseException:
        await platform.stop()
        raise
    return True
