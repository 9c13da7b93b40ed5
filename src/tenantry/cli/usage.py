"""`tenantry usage`."""

from __future__ import annotations

import asyncio

from tenantry.cli.options import DEFAULT, Options
from tenantry.cli.output import print_json, print_table, say
from tenantry.embedded.platform import use_platform
from tenantry.pipelines.usage import Division, Usage, read_usage
from tenantry.postgres.migrations import ensure_schema
from tenantry.postgres.pool import connect
from tenantry.tenants.quantities import parse_duration


def usage(
    *,
    tenant: str | None = None,
    pipeline: str | None = None,
    since: str = "24h",
    by: Division = "tenant",
    json: bool = False,
    options: Options = DEFAULT,
) -> None:
    """Show what pipelines did for tenants: events, bytes, bytes that were stored, and the time of Spark's tasks.

    Parameters
    ----------
    tenant
        Only for this tenant.
    pipeline
        Only by this pipeline.
    since
        Of the last so much time, like 5m, 24h or 30d.
    by
        What is summed up.
    json
        Print one JSON document.
    """
    seconds = parse_duration("since", since)

    async def ask() -> list[Usage]:
        async with use_platform(options.load().settings, with_nats=False) as platform:
            await ensure_schema(platform.database_url, may_migrate=platform.postgres is not None)
            async with connect(platform.database_url, autocommit=True) as connection:
                return await read_usage(connection, by, seconds, tenant, pipeline)

    found = asyncio.run(ask())
    if json:
        return print_json([{by: each.of} | _figures(each) for each in found])
    if not found:
        return say(f"Pipelines did nothing in the last {since}.")
    rows = [
        (each.of, f"{each.events:,}", f"{each.bytes:,}", f"{each.stored_bytes:,}", f"{each.task_seconds:,.3f}")
        for each in found
    ]
    print_table((by, "events", "bytes", "stored bytes", "task seconds"), rows)


def _figures(usage: Usage) -> dict[str, float]:
    return {
        "events": usage.events,
        "bytes": usage.bytes,
        "stored_bytes": usage.stored_bytes,
        "task_seconds": usage.task_seconds,
    }
