"""What commands about tenants have in common: the platform at hand, and who is acting."""

from __future__ import annotations

import asyncio
import os
import pwd
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TypeVar

from tenantry.cli.options import Options
from tenantry.config import Settings
from tenantry.embedded.platform import EmbeddedPlatform, use_platform
from tenantry.postgres.migrations import ensure_schema
from tenantry.tenants.administration import Administration
from tenantry.tenants.assembly import open_administration

Result = TypeVar("Result")


def administer(options: Options, act: Callable[[Administration], Awaitable[Result]]) -> Result:
    """Do one thing with the tenants, from beginning to end; for commands, which are not asynchronous."""

    async def run() -> Result:
        async with use_administration(options.load().settings) as administration:
            return await act(administration)

    return asyncio.run(run())


@asynccontextmanager
async def use_administration(settings: Settings) -> AsyncIterator[Administration]:
    """The tenants of the platform that runs already, else of one that runs for as long as the command."""
    async with use_platform(settings) as platform:
        await ensure_schema(platform.database_url, may_migrate=platform.postgres is not None)
        async with administration_of(platform) as administration:
            yield administration


def administration_of(platform: EmbeddedPlatform) -> AbstractAsyncContextManager[Administration]:
    """The tenants of a platform that runs and has our schema."""
    return open_administration(
        platform.settings,
        broker=platform.broker,
        authority=platform.authority,
        database_url=platform.database_url,
        secret=platform.secret,
    )


def actor() -> str:
    """Who the audit log says did it."""
    try:
        return f"cli:{pwd.getpwuid(os.getuid()).pw_name}"
    except KeyError:
        # A container may run as a number that nobody gave a name.
        return f"cli:{os.getuid()}"
