"""What commands about the outbox have in common: the database that has it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tenantry.config import Settings
from tenantry.embedded.platform import use_platform
from tenantry.postgres.migrations import ensure_schema
from tenantry.postgres.pool import connect
from tenantry.postgres.queries import Connection


@asynccontextmanager
async def use_outbox(settings: Settings) -> AsyncIterator[Connection]:
    """The database of `outbox_url`, else the platform's; a query that only reads leaves no transaction open."""
    if settings.outbox_url:
        url = settings.outbox_url.get_secret_value()
        await ensure_schema(url, may_migrate=False, outbox_only=True)
        async with connect(url, autocommit=True) as connection:
            yield connection
        return
    async with use_platform(settings, with_nats=False) as platform:
        await ensure_schema(platform.database_url, may_migrate=platform.postgres is not None)
        async with connect(platform.database_url, autocommit=True) as connection:
            yield connection
