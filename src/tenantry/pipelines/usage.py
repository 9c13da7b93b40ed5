"""What pipelines did for tenants, summed up: events, bytes, and the time of Spark's tasks."""

from __future__ import annotations

from typing import Literal

import msgspec

from tenantry.postgres.queries import Connection, SqlFolder

Division = Literal["tenant", "pipeline", "channel", "minute"]

_sql = SqlFolder("tenantry.pipelines")


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    of: str
    """A tenant, a pipeline, a channel, or a minute in UTC."""
    events: int
    bytes: int
    stored_bytes: int
    task_seconds: float


async def read_usage(
    connection: Connection, by: Division, seconds: int, tenant: str | None = None, pipeline: str | None = None
) -> list[Usage]:
    """Of the last so many seconds; the most expensive first, minutes in their order."""
    parameters = {"by": by, "seconds": seconds, "tenant": tenant, "pipeline": pipeline}
    return [Usage(**row) for row in await _sql.fetch_all(connection, "sum_usage", parameters)]
