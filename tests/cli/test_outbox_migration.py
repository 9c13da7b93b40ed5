"""`tenantry migrate --outbox-only`: the outbox in an application's own database."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tenantry.errors import DatabaseError
from tenantry.postgres.migrations import Migrations
from tests.processes import run_tenantry


def tables(url: str) -> set[str]:
    with psycopg.connect(url) as connection:
        rows = connection.execute("select tablename from pg_tables where schemaname = 'tenantry'").fetchall()
    return {row[0] for row in rows}


def applied(url: str, *flags: str) -> list[str]:
    done = run_tenantry("migrate", *flags, "--json", env={"DATABASE_URL": url})
    assert done.returncode == 0, done.stderr
    return [each["name"] for each in json.loads(done.stdout)["applied"]]


def test_an_applications_own_database_gets_the_outbox_what_handlers_remember_and_nothing_else(database: str) -> None:
    shown = run_tenantry("migrate", "--outbox-only", "--dry-run", env={"DATABASE_URL": database})
    assert "create function tenantry.emit(" in shown.stdout
    assert "create table tenantry.tenants" not in shown.stdout
    assert tables(database) == set()
    first = applied(database, "--outbox-only")
    assert first[0] == "foundation"
    assert all(name.startswith("outbox") for name in first[1:])
    others = {name for name in tables(database) if not name.startswith("outbox")}
    assert others == {"migrations", "handled", "fences"}
    assert applied(database, "--outbox-only") == []
    with psycopg.connect(database) as connection:
        connection.execute("insert into tenantry.outbox_lanes (tenant_id, channel, payload) values ('a', 'b', 1000)")
        connection.execute("select tenantry.emit('a', 'order.created', channel => 'b')")


def test_a_full_migration_may_follow(database: str) -> None:
    outbox = applied(database, "--outbox-only")
    rest = applied(database)
    assert sorted(outbox + rest) == sorted(migration.name for migration in Migrations().all)
    assert {"tenants", "outbox"} <= tables(database)
    assert applied(database) == []
    assert applied(database, "--outbox-only") == []


def test_the_outboxs_own_address_is_stronger_than_the_platforms(database: str) -> None:
    env = {"DATABASE_URL": "postgresql://nobody@127.0.0.1:9/none", "TENANTRY_OUTBOX_URL": database}
    done = run_tenantry("migrate", "--outbox-only", env=env)
    assert done.returncode == 0, done.stderr
    assert "outbox" in tables(database)


def test_without_an_address_nothing_is_started_and_it_says_what_to_name(tmp_path: Path) -> None:
    done = run_tenantry("migrate", "--outbox-only", "--data", tmp_path / "data")
    assert done.returncode == 1
    assert "--outbox-url (TENANTRY_OUTBOX_URL) or --database-url (DATABASE_URL)" in done.stderr
    assert not (tmp_path / "data").exists()


async def test_an_older_server_is_refused(database: str) -> None:
    class OldServer:
        """Of a server that we do not have, only the number is needed."""

        server_version = 150004

    class Connected:
        info = OldServer()

    connection: Any = Connected()
    with pytest.raises(DatabaseError, match=r"expected PostgreSQL 16 or newer, got: 15\.4; upgrade"):
        await Migrations(outbox_only=True).pending(connection)
