"""Migrations: numbered `.sql` files, applied in order, each in a transaction of its own with the record of it.

`schema.sql` holds the whole schema as the migrations leave it; a test compares the two.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from functools import cached_property
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Final

from tenantry.errors import DatabaseError, MigrationChanged, SchemaTooNew, SchemaTooOld
from tenantry.postgres.pool import connect
from tenantry.postgres.queries import Connection, SqlFolder
from tenantry.telemetry import signal

MIGRATION_APPLIED = signal(
    "postgres.migration.applied", "A migration was applied.", "version", "name", "seconds", "error"
)

# One migrator at a time, however many processes start together. The number is arbitrary but must never change.
LOCK: Final = 7_368_601_194
OUTBOX: Final = "outbox"
OLDEST_SERVER: Final = 160000

_FILE_NAME = re.compile(r"(\d{4})_([a-z0-9_]+)\.sql")
_sql = SqlFolder("tenantry.postgres")


@dataclass(frozen=True)
class Migration:
    version: int
    name: str
    statements: str

    @cached_property
    def checksum(self) -> str:
        return hashlib.sha256(self.statements.encode()).hexdigest()


class Migrations:
    """The migrations of one folder, and what a database has of them.

    An application's own database needs the outbox only: the migrations that are named after it, and the first one.
    """

    def __init__(self, folder: Traversable | None = None, *, outbox_only: bool = False) -> None:
        self._folder = folder or files("tenantry.postgres") / "migrations"
        self._outbox_only = outbox_only

    @cached_property
    def all(self) -> list[Migration]:
        """What a database should have."""
        if not self._outbox_only:
            return self._known
        return [each for each in self._known if each.version == 1 or each.name.startswith(OUTBOX)]

    @cached_property
    def _known(self) -> list[Migration]:
        found = [
            Migration(int(match[1]), match[2], file.read_text())
            for file in self._folder.iterdir()
            if (match := _FILE_NAME.fullmatch(file.name))
        ]
        found.sort(key=lambda migration: migration.version)
        if [migration.version for migration in found] != list(range(1, len(found) + 1)):
            raise ValueError(f"expected migrations numbered 0001 to {len(found):04}, one file each, in {self._folder}")
        return found

    async def pending(self, connection: Connection) -> list[Migration]:
        """What is still to be applied. A database that is ahead of us, or that had other migrations, is refused."""
        version = connection.info.server_version
        if version < OLDEST_SERVER:
            raise DatabaseError(
                f"expected PostgreSQL {OLDEST_SERVER // 10000} or newer, got: {version // 10000}.{version % 10000}; "
                "upgrade the server, or use another one"
            )
        applied = await self._applied(connection)
        if unknown := applied.keys() - {migration.version for migration in self._known}:
            raise SchemaTooNew(
                f"the database has migration {max(unknown):04} and this release knows {len(self._known)}; "
                "run the release that migrated it, or a newer one"
            )
        for migration in self.all:
            if applied.get(migration.version, migration.checksum) != migration.checksum:
                raise MigrationChanged(
                    f"migration {migration.version:04} ({migration.name}) was changed after it had been applied here; "
                    "restore the file and make the change a new migration"
                )
        return [migration for migration in self.all if migration.version not in applied]

    async def apply(self, connection: Connection) -> list[Migration]:
        """Bring the database up to date; the connection must be in autocommit mode. Returns what was applied."""
        applied: list[Migration] = []
        # Held until the connection ends, should one of them fail.
        await _sql.execute(connection, "lock_migrations", {"lock": LOCK})
        for migration in await self.pending(connection):
            record = {"version": migration.version, "name": migration.name, "checksum": migration.checksum}
            with MIGRATION_APPLIED.span(version=migration.version, name=migration.name):
                async with connection.transaction():
                    await connection.execute(migration.statements)
                    await _sql.execute(connection, "record_migration", record)
            applied.append(migration)
        await _sql.execute(connection, "unlock_migrations", {"lock": LOCK})
        return applied

    async def require_current(self, connection: Connection) -> None:
        """Refuse to work with a schema that is not ours, and say the command to run."""
        if pending := await self.pending(connection):
            command = "tenantry migrate --outbox-only" if self._outbox_only else "tenantry migrate"
            raise SchemaTooOld(
                f"the database lacks {len(pending)} of {len(self.all)} migrations; run `{command}`, "
                f"or `{command} --dry-run` to see them first"
            )

    async def _applied(self, connection: Connection) -> dict[int, str]:
        exists = await _sql.fetch_one(connection, "has_migrations_table")
        if not exists or not exists["present"]:
            return {}
        rows = await _sql.fetch_all(connection, "applied_migrations")
        return {row["version"]: row["checksum"] for row in rows}


async def ensure_schema(database_url: str, *, may_migrate: bool, outbox_only: bool = False) -> None:
    """Migrate a database that is ours alone; of one that others run, only check that it fits."""
    async with connect(database_url, autocommit=True) as connection:
        migrations = Migrations(outbox_only=outbox_only)
        await (migrations.apply if may_migrate else migrations.require_current)(connection)
