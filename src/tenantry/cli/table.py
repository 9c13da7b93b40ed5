"""`tenantry table list` and `maintain`."""

from __future__ import annotations

import asyncio
import re
import sys
from typing import Any

import msgspec

from tenantry.cli.options import DEFAULT, Options
from tenantry.cli.output import format_time, note, print_json, print_table, progress, say
from tenantry.cli.session import administer
from tenantry.config import Settings
from tenantry.pipelines.lake import Lake
from tenantry.pipelines.maintenance import Maintenance
from tenantry.pipelines.table_registry import RegisteredTable
from tenantry.pipelines.table_upkeep import TableUpkeep, Upkept
from tenantry.tenants.administration import Administration

LOOKED_AT_ONCE = 8

_ORNAMENTS = re.compile(r"\x1b\[\d*m|↳")


def list_tables(
    *, tenant: str | None = None, recorded: bool = False, json: bool = False, options: Options = DEFAULT
) -> None:
    """List the tables that pipelines have made, and how large they are.

    Parameters
    ----------
    tenant
        Only this tenant's.
    recorded
        Show how large they were when they were last looked after, instead of looking: quicker if there are many.
    json
        Print one JSON document.
    """
    settings = options.load().settings

    async def act(administration: Administration) -> list[RegisteredTable]:
        maintenance = await _maintenance(administration, settings, tenant)
        tables = await maintenance.tables.all(tenant)
        return tables if recorded else await _look(maintenance.upkeep, tables)

    found = administer(options, act)
    if json:
        return print_json([_describe(each) for each in found])
    if not found:
        return say("There are no tables yet; pipelines make them with the first events.")
    rows = [
        (each.tenant_id, each.name, f"{each.rows:,}", f"{each.bytes:,}", f"{each.files:,}", each.location)
        for each in found
    ]
    print_table(("tenant", "table", "rows", "bytes", "files", "location"), rows)
    if recorded:
        oldest = min((each.maintained_at for each in found if each.maintained_at), default=None)
        note(f"As they were when they were last looked after, the first of them {format_time(oldest)}.")


def maintain(
    *, tenant: str | None = None, table: str | None = None, json: bool = False, options: Options = DEFAULT
) -> None:
    """Look after tables now: put small files together, remove rows past their time and files that nobody needs.

    The pipelines do it by themselves, for each table every hour. Exit status 1 if it could not be done for one.

    Parameters
    ----------
    tenant
        Only this tenant's.
    table
        Only tables of this name.
    json
        Print one JSON document.
    """
    settings = options.load().settings

    async def act(administration: Administration) -> list[tuple[RegisteredTable, Upkept | Exception | None]]:
        maintenance = await _maintenance(administration, settings, tenant)
        with progress() as bars:
            wanted = await maintenance.tables.all(tenant, table)
            return [(each, await maintenance.look_after(each)) for each in bars.track(wanted, description="tables")]

    done = administer(options, act)
    if json:
        print_json([_outcome(each, outcome) for each, outcome in done])
    elif not done:
        say("There are no such tables.")
    else:
        columns = ("tenant", "table", "rows", "bytes", "files", "rows deleted", "files removed", "seconds")
        print_table(columns, [_row(each, outcome) for each, outcome in done])
    problems = [(each, outcome) for each, outcome in done if isinstance(outcome, Exception)]
    for each, problem in problems:
        note(f"Tenant {each.tenant_id}: {each.name} at {each.location} could not be looked after: {_plain(problem)}")
    if problems:
        sys.exit(1)


async def _maintenance(administration: Administration, settings: Settings, tenant: str | None) -> Maintenance:
    if tenant:
        await administration.registry.get(tenant)
    lake = Lake.from_settings(settings)
    return Maintenance(administration.pool, administration.registry, administration.audit, lake)


async def _look(upkeep: TableUpkeep, tables: list[RegisteredTable]) -> list[RegisteredTable]:
    turns = asyncio.Semaphore(LOOKED_AT_ONCE)

    async def look(table: RegisteredTable) -> RegisteredTable:
        async with turns:
            try:
                figures = await asyncio.to_thread(upkeep.look, table.location)
            except Exception as problem:
                note(f"Table {table.name} of tenant {table.tenant_id} is shown as it last was: {_plain(problem)}")
                return table
        return table.with_figures(figures) if figures else table

    return list(await asyncio.gather(*map(look, tables)))


def _describe(table: RegisteredTable) -> dict[str, Any]:
    return {
        "tenant": table.tenant_id,
        "table": table.name,
        "rows": table.rows,
        "bytes": table.bytes,
        "files": table.files,
        "version": table.version,
        "maintained_at": table.maintained_at,
        "location": table.location,
    }


def _outcome(table: RegisteredTable, outcome: Upkept | Exception | None) -> dict[str, Any]:
    about = {"tenant": table.tenant_id, "table": table.name, "location": table.location}
    if isinstance(outcome, Exception):
        return about | {"problem": _plain(outcome)}
    return about | (msgspec.to_builtins(outcome) if outcome else {})


def _plain(problem: Exception) -> str:
    """The store's own words come in many lines, with colours and arrows."""
    return " ".join(_ORNAMENTS.sub("", str(problem)).split())


def _row(table: RegisteredTable, outcome: Upkept | Exception | None) -> tuple[str, ...]:
    if not isinstance(outcome, Upkept):
        return table.tenant_id, table.name, "-", "-", "failed" if outcome else "none yet", "-", "-", "-"
    return (
        table.tenant_id,
        table.name,
        f"{outcome.figures.rows:,}",
        f"{outcome.figures.bytes:,}",
        f"{outcome.files_before:,} → {outcome.figures.files:,}",
        f"{outcome.rows_deleted:,}",
        f"{outcome.files_removed:,}",
        f"{outcome.seconds:.2f}",
    )
