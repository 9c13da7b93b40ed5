"""Embedded servers for one benchmark, in a folder that is gone afterwards."""

from __future__ import annotations

import os
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

from tenantry.config import Settings
from tenantry.embedded.platform import EmbeddedPlatform, use_platform
from tenantry.postgres.migrations import ensure_schema
from tenantry.tenants.administration import Administration
from tenantry.tenants.assembly import open_administration


@contextmanager
def own_settings() -> Iterator[Settings]:
    with tempfile.TemporaryDirectory() as folder:
        # The user as whom root runs PostgreSQL must be able to walk through.
        Path(folder).chmod(0o711)
        yield Settings(data=Path(folder) / "data")


@asynccontextmanager
async def own_platform(settings: Settings) -> AsyncIterator[tuple[EmbeddedPlatform, Administration]]:
    async with use_platform(settings) as platform:
        await ensure_schema(platform.database_url, may_migrate=True)
        async with open_administration(
            settings,
            broker=platform.broker,
            authority=platform.authority,
            database_url=platform.database_url,
            secret=platform.secret,
        ) as administration:
            yield platform, administration


def environment(platform: EmbeddedPlatform) -> dict[str, str]:
    """That of a process which is to use these servers as its own."""
    return dict(os.environ, **platform.environment())
