"""`tenantry migrate`."""

from __future__ import annotations

import asyncio

from tenantry.cli.options import DEFAULT, Options
from tenantry.cli.output import console, print_json
from tenantry.config import Settings
from tenantry.embedded.platform import EmbeddedPlatform, use_platform
from tenantry.errors import ConfigError
from tenantry.postgres.migrations import Migration, Migrations
from tenantry.postgres.pool import connect


def migrate(
    *, outbox_only: bool = False, dry_run: bool = False, json: bool = False, options: Options = DEFAULT
) -> None:
    """Bring the database schema up to date. Safe to run at any time and from several places at once.

    Parameters
    ----------
    outbox_only
        Only what it takes to emit events, in an application's own database: the one of --outbox-url, else of
        --database-url (DATABASE_URL). PostgreSQL 16 or newer.
    dry_run
        Print the SQL of what would be applied, and apply nothing.
    json
        Print one JSON document.
    """
    done = asyncio.run((_migrate_outbox if outbox_only else _migrate)(options.load().settings, dry_run))
    if json:
        rows = [{"version": each.version, "name": each.name, "checksum": each.checksum} for each in done]
        return print_json({"pending" if dry_run else "applied": rows})
    if not done:
        console.print("The schema is up to date.")
    for migration in done:
        if dry_run:
            # As it is: this is to be read by programs too.
            print(f"-- {migration.version:04} {migration.name}\n{migration.statements}")
        else:
            console.print(f"applied {migration.version:04} {migration.name}")


async def _migrate(settings: Settings, dry_run: bool) -> list[Migration]:
    migrations = Migrations()
    postgres = EmbeddedPlatform(settings, with_nats=False).postgres
    if dry_run and postgres and not postgres.is_initialised:
        return migrations.all
    async with (
        use_platform(settings, with_nats=False) as platform,
        connect(platform.database_url, autocommit=True) as connection,
    ):
        return await (migrations.pending if dry_run else migrations.apply)(connection)


async def _migrate_outbox(settings: Settings, dry_run: bool) -> list[Migration]:
    address = settings.outbox_url or settings.database_url
    if address is None:
        raise ConfigError(
            "expected --outbox-only to know the application's database; name it by --outbox-url (TENANTRY_OUTBOX_URL) "
            "or --database-url (DATABASE_URL)"
        )
    migrations = Migrations(outbox_only=True)
    async with connect(address.get_secret_value(), autocommit=True) as connection:
        return await (migrations.pending if dry_run else migrations.apply)(connection)
