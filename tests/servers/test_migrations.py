"""Migrations against a real database."""

from __future__ import annotations

import asyncio
from importlib.resources import files
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tenantry.errors import DatabaseUnreachable, MigrationChanged, SchemaTooNew, SchemaTooOld
from tenantry.postgres.migrations import Migrations, ensure_schema
from tenantry.postgres.pool import connect, open_pool
from tenantry.postgres.queries import Connection
from tenantry.testing import TestPlatform


async def describe(url: str) -> dict[str, Any]:
    """Everything that makes up the schema, in words of the catalogue."""
    questions = {
        "columns": """select table_name, ordinal_position, column_name, data_type, is_nullable, column_default,
                             is_generated, generation_expression, is_identity
                      from information_schema.columns where table_schema = 'tenantry'""",
        "relations": """select c.relname, c.relkind, c.relpersistence, c.relrowsecurity, c.relforcerowsecurity,
                               c.reloptions, pg_get_partkeydef(c.oid), pg_get_expr(c.relpartbound, c.oid)
                        from pg_class c where c.relnamespace = 'tenantry'::regnamespace""",
        "constraints": """select conrelid::regclass::text, conname, pg_get_constraintdef(oid)
                          from pg_constraint where connamespace = 'tenantry'::regnamespace""",
        "indexes": "select tablename, indexname, indexdef from pg_indexes where schemaname = 'tenantry'",
        "views": "select viewname, definition from pg_views where schemaname = 'tenantry'",
        "functions": """select proname, pg_get_functiondef(oid) from pg_proc
                        where pronamespace = 'tenantry'::regnamespace and prokind in ('f', 'p')""",
        "triggers": """select tgrelid::regclass::text, tgname, pg_get_triggerdef(oid) from pg_trigger
                       where not tgisinternal""",
        "policies": "select tablename, policyname, cmd, roles, qual, with_check from pg_policies",
        "types": """select t.typname, t.typtype, array(select enumlabel from pg_enum where enumtypid = t.oid
                    order by enumsortorder) from pg_type t where t.typnamespace = 'tenantry'::regnamespace""",
        "privileges": """select relname, relacl::text from pg_class where relnamespace = 'tenantry'::regnamespace""",
        "comments": """select objoid::regclass::text, objsubid, description from pg_description
                       where classoid = 'pg_class'::regclass and objoid in
                       (select oid from pg_class where relnamespace = 'tenantry'::regnamespace)""",
    }
    async with connect(url) as connection:
        return {
            name: sorted(map(str, await (await connection.execute(question)).fetchall()))
            for name, question in questions.items()
        }


async def test_a_migrated_database_equals_the_full_schema(platform: TestPlatform) -> None:
    schema = (files("tenantry.postgres") / "schema.sql").read_text()
    async with platform.database() as migrated, platform.database() as whole:
        async with connect(migrated, autocommit=True) as connection:
            await Migrations().apply(connection)
        async with connect(whole, autocommit=True) as connection:
            await connection.execute(schema)
        described = await describe(migrated)
        assert described["columns"]
        assert described == await describe(whole)


async def test_a_second_run_applies_nothing(database: str) -> None:
    async with connect(database, autocommit=True) as connection:
        assert [migration.version for migration in await Migrations().apply(connection)] == [
            migration.version for migration in Migrations().all
        ]
        assert await Migrations().apply(connection) == []
        await Migrations().require_current(connection)


def folder_with(path: Path, *statements: str) -> Migrations:
    """The real first migration, then these."""
    first = (files("tenantry.postgres") / "migrations" / "0001_foundation.sql").read_text()
    path.mkdir(exist_ok=True)
    for number, text in enumerate([first, *statements], start=1):
        (path / f"{number:04}_step.sql").write_text(text)
    return Migrations(path)


async def tables(connection: Connection) -> set[str]:
    rows = await connection.execute("select tablename from pg_tables where schemaname = 'tenantry'")
    return {row[0] for row in await rows.fetchall()}


async def test_an_older_database_is_refused_with_the_command_to_run(database: str, tmp_path: Path) -> None:
    migrations = folder_with(tmp_path / "a", "create table tenantry.later (id int)")
    async with connect(database, autocommit=True) as connection:
        with pytest.raises(SchemaTooOld, match="lacks 2 of 2 migrations; run `tenantry migrate`"):
            await migrations.require_current(connection)
        await folder_with(tmp_path / "b").apply(connection)
        with pytest.raises(SchemaTooOld, match="lacks 1 of 2 migrations"):
            await migrations.require_current(connection)
        assert [migration.version for migration in await migrations.pending(connection)] == [2]
        assert await tables(connection) == {"migrations"}


async def test_a_newer_database_is_refused(database: str, tmp_path: Path) -> None:
    async with connect(database, autocommit=True) as connection:
        await folder_with(tmp_path / "a", "create table tenantry.later (id int)").apply(connection)
        with pytest.raises(SchemaTooNew, match="has migration 0002 and this release knows 1"):
            await folder_with(tmp_path / "b").apply(connection)


async def test_a_changed_migration_is_refused(database: str, tmp_path: Path) -> None:
    async with connect(database, autocommit=True) as connection:
        await folder_with(tmp_path / "a", "create table tenantry.later (id int)").apply(connection)
        with pytest.raises(MigrationChanged, match="migration 0002"):
            await folder_with(tmp_path / "b", "create table tenantry.later (id bigint)").require_current(connection)


async def test_a_migration_that_fails_leaves_nothing_behind_and_can_be_run_again(database: str, tmp_path: Path) -> None:
    async with connect(database, autocommit=True) as connection:
        broken = folder_with(tmp_path / "a", "create table tenantry.half (id int); select 1 / 0")
        with pytest.raises(psycopg.errors.DivisionByZero):
            await broken.apply(connection)
        assert await tables(connection) == {"migrations"}
        mended = folder_with(tmp_path / "b", "create table tenantry.half (id int)")
        assert [migration.version for migration in await mended.apply(connection)] == [2]


async def test_many_that_migrate_at_once_apply_each_migration_once(database: str, tmp_path: Path) -> None:
    migrations = folder_with(tmp_path / "a", *(f"create table tenantry.t{number} (id int)" for number in range(10)))

    async def one() -> int:
        async with connect(database, autocommit=True) as connection:
            return len(await migrations.apply(connection))

    assert sum(await asyncio.gather(*(one() for _ in range(6)))) == 11


def test_a_hole_in_the_numbers_is_refused(tmp_path: Path) -> None:
    folder_with(tmp_path, "select 1", "select 2")
    (tmp_path / "0002_step.sql").unlink()
    with pytest.raises(ValueError, match="numbered 0001 to 0002"):
        _ = Migrations(tmp_path).all


async def test_a_database_of_others_is_checked_and_never_migrated(database: str) -> None:
    with pytest.raises(SchemaTooOld):
        await ensure_schema(database, may_migrate=False)
    await ensure_schema(database, may_migrate=True)
    await ensure_schema(database, may_migrate=False)


async def test_a_pool_says_why_it_cannot_connect_without_the_password() -> None:
    with pytest.raises(DatabaseUnreachable, match=r"127\.0\.0\.1:9/db.*check DATABASE_URL") as caught:
        async with open_pool("postgresql://u:hidden@127.0.0.1:9/db", 2):
            pass
    assert "hidden" not in str(caught.value)


async def test_a_pool_outlives_connections_that_the_server_ends(database: str) -> None:
    async with open_pool(database, 2) as pool:
        async with pool.connection() as connection:
            pid = connection.info.backend_pid
        async with connect(database) as killer:
            await killer.execute("select pg_terminate_backend(%s)", [pid])
        async with pool.connection() as connection:
            row = await (await connection.execute("select 1")).fetchone()
        assert row == (1,)
