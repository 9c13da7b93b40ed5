"""A platform whose servers a test may take away: NATS by killing it, the database by closing it to all."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import psycopg
from psycopg.rows import dict_row

from tenantry.api.app import build_app
from tenantry.api.server import ApiServer
from tenantry.config import Settings
from tenantry.nats.connections import Broker
from tenantry.outbox.service import RelayService
from tenantry.postgres.migrations import ensure_schema
from tenantry.service import end
from tenantry.tenants.administration import Administration
from tenantry.tenants.assembly import open_administration
from tenantry.tenants.roster import Roster
from tenantry.testing import TestPlatform
from tests.api.conftest import Api
from tests.databases import without_database
from tests.own_server import OwnServer


async def until(condition: Callable[[], Any], seconds: float = 30) -> None:
    """Wait until something is so."""
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.01)


@dataclass
class FragilePlatform:
    nats: OwnServer
    database: str
    superuser: str
    administration: Administration
    stack: AsyncExitStack
    apis: list[Api] = field(default_factory=list)

    async def start_api(self) -> Api:
        """One more process, as far as anybody can tell."""
        settings = Settings()
        app = build_app(self.administration, keys=self.administration.keys, tokens=None, settings=settings)
        server = ApiServer(app, settings.api_host, 0)
        await server.start()
        self.stack.push_async_callback(server.stop)
        return Api(self.administration, self.administration.keys, server, self.stack)

    async def rows(self) -> list[dict[str, Any]]:
        """What is in the outbox, in the order of its lanes."""
        async with await psycopg.AsyncConnection.connect(self.database, row_factory=dict_row) as connection:
            found = await connection.execute(
                "select e.*, o.document, o.tracestate from tenantry.outbox_events e "
                "join tenantry.outbox o using (lane, ticket, id) order by e.ticket, e.id"
            )
            return await found.fetchall()

    async def relay(self) -> None:
        """What a relay leaves behind when it has published everything."""
        async with await psycopg.AsyncConnection.connect(self.database) as connection:
            await connection.execute(
                "update tenantry.outbox_cursors c set ticket = o.ticket, id = o.id from ("
                "  select distinct on (lane) lane, ticket, id from tenantry.outbox order by lane, ticket desc, id desc"
                ") o where o.lane = c.lane"
            )

    @asynccontextmanager
    async def relaying(self) -> AsyncIterator[None]:
        """A relay is at work."""
        roster = Roster(self.administration.registry, self.administration.lanes)
        await roster.start()
        following = asyncio.ensure_future(roster.run())
        relay = RelayService(self.database, roster, self.administration.lanes, Settings())
        await relay.start()
        try:
            yield
        finally:
            await relay.stop()
            await end([following])

    def without_database(self) -> AbstractAsyncContextManager[None]:
        return without_database(self.superuser, self.database)


@asynccontextmanager
async def open_fragile(platform: TestPlatform, nats: OwnServer) -> AsyncIterator[FragilePlatform]:
    async with platform.database() as url, AsyncExitStack() as stack:
        await ensure_schema(url, may_migrate=True)
        administration = await stack.enter_async_context(
            open_administration(
                Settings(),
                broker=Broker(f"nats://{nats.address}"),
                authority=None,
                database_url=url,
                secret=secrets.token_hex(16),
            )
        )
        superuser = platform.postgres.address("postgres", "postgres")
        yield FragilePlatform(nats, url, superuser, administration, stack)
