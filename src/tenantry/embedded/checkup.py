"""Checks of this machine and of the servers: what is well, what is not in use, and what to do about the rest."""

from __future__ import annotations

import platform as machine
import shutil
import subprocess
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Final

from tenantry.config import Configuration
from tenantry.embedded.java import find_java
from tenantry.embedded.nats_server import find_nats_server
from tenantry.embedded.platform import EmbeddedPlatform
from tenantry.embedded.ports import why_not_free
from tenantry.embedded.postgres_server import find_binaries
from tenantry.errors import TenantryError
from tenantry.nats.reach import require_jetstream
from tenantry.postgres.migrations import Migrations
from tenantry.postgres.pool import connect as connect_database

OLDEST_PYTHON: Final = (3, 11)
DISK_NEEDED: Final = 2_000_000_000


class State(Enum):
    OK = "ok"
    IDLE = "idle"
    WRONG = "wrong"


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the check-up."""

    name: str
    state: State
    detail: str


class Checkup:
    """Looks at everything that these settings rely on."""

    def __init__(self, configuration: Configuration) -> None:
        self._configuration = configuration
        self._settings = configuration.settings
        self._platform = EmbeddedPlatform(configuration.settings)
        self._running: str | None = None

    async def run(self) -> list[Finding]:
        checks: list[tuple[str, Callable[[], Awaitable[tuple[State, str]]]]] = [
            ("Python", self._python),
            ("settings", self._settings_spelling),
            ("Java", self._java),
            ("nats-server", self._nats_program),
            ("PostgreSQL", self._postgres_programs),
            ("disk", self._disk),
            ("data", self._data),
            ("ports", self._ports),
            ("NATS", self._nats),
            ("database", self._database),
        ]
        findings = []
        for name, check in checks:
            try:
                state, detail = await check()
            except TenantryError as problem:
                state, detail = State.WRONG, str(problem)
            findings.append(Finding(name, state, detail))
        return findings

    async def _python(self) -> tuple[State, str]:
        detail = f"{machine.python_version()} at {sys.executable}"
        if sys.version_info >= OLDEST_PYTHON:
            return State.OK, detail
        return State.WRONG, f"{detail}; install Python 3.11 or newer"

    async def _settings_spelling(self) -> tuple[State, str]:
        if unknown := self._configuration.unknown_variables:
            return State.WRONG, f"{', '.join(unknown)}: set, but no setting has that name; see `tenantry config show`"
        return State.OK, "all understood; `tenantry config show` lists them"

    async def _java(self) -> tuple[State, str]:
        java = find_java(self._settings.java_home)
        modules = "with the vector module" if java.has_vector_module else "without the vector module (shimmed)"
        return State.OK, f"{java.version} from {java.origin} at {java.home}, {modules}"

    async def _nats_program(self) -> tuple[State, str]:
        if self._platform.nats is None:
            return State.IDLE, "not needed: NATS_URL names a server"
        return State.OK, f"{_output(find_nats_server(), '--version')} at {find_nats_server()}"

    async def _postgres_programs(self) -> tuple[State, str]:
        if self._platform.postgres is None:
            return State.IDLE, "not needed: DATABASE_URL names a server"
        return State.OK, f"{_output(find_binaries() / 'postgres', '--version')} at {find_binaries()}"

    async def _disk(self) -> tuple[State, str]:
        place = _nearest_existing(self._settings.data)
        free = shutil.disk_usage(place).free
        detail = f"{free / 1e9:.1f} GB free for {self._settings.data}"
        if free >= DISK_NEEDED:
            return State.OK, detail
        return State.WRONG, f"{detail}; free at least {DISK_NEEDED / 1e9:.0f} GB, or choose another disk with --data"

    async def _data(self) -> tuple[State, str]:
        path = self._settings.data
        self._running = self._platform.directory.holder()
        if self._running:
            return State.OK, f"{path}, in use by process {self._running}"
        return State.IDLE, f"{path}, {'not in use' if path.exists() else 'made at the first start'}"

    async def _ports(self) -> tuple[State, str]:
        remembered = self._platform.directory.remembered()
        wanted = {"nats": self._settings.nats_port, "postgres": self._settings.postgres_port}
        ports = {use: port or remembered.get(f"{use}_port") for use, port in wanted.items()}
        shown = ", ".join(f"{use} {port}" for use, port in ports.items() if port)
        if not shown:
            return State.IDLE, "chosen at the first start"
        taken = [
            f"{port} {why}" for port in ports.values() if port and not self._running and (why := why_not_free(port))
        ]
        if taken:
            return State.WRONG, f"{'; '.join(taken)}; stop that, or choose anew with --nats-port 0, --postgres-port 0"
        return State.OK, shown

    async def _nats(self) -> tuple[State, str]:
        if self._platform.nats:
            if not self._running:
                return State.IDLE, "not running; `tenantry up` starts it"
            self._platform.nats.locate()
        version, info = await require_jetstream(self._platform.broker)
        return State.OK, f"nats-server {version} answers; JetStream has {info.streams} streams"

    async def _database(self) -> tuple[State, str]:
        if self._platform.postgres:
            if not self._running:
                return State.IDLE, "not running; `tenantry up` starts it"
            self._platform.postgres.locate()
        async with connect_database(self._platform.database_url) as connection:
            migrations = Migrations()
            await migrations.require_current(connection)
            version = connection.info.server_version
            return State.OK, f"PostgreSQL {version // 10000}.{version % 10000} answers; the schema is up to date"


def _output(program: Path, flag: str) -> str:
    return subprocess.run([program, flag], capture_output=True, text=True, check=False).stdout.strip()


def _nearest_existing(path: Path) -> Path:
    try:
        return path if path.exists() else _nearest_existing(path.parent)
    except PermissionError:
        return _nearest_existing(path.parent)
