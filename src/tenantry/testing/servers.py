"""The embedded servers for a test run: one process starts them, and all its workers use them."""

from __future__ import annotations

import asyncio
import secrets
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import psycopg
from psycopg import sql

from tenantry.config import Settings
from tenantry.embedded.platform import EmbeddedPlatform
from tenantry.nats import claims
from tenantry.nats.accounts import AccountServer
from tenantry.nats.connections import Broker, connect
from tenantry.nats.keys import Key, Role
from tenantry.postgres.migrations import ensure_schema
from tenantry.tenants.administration import Administration
from tenantry.tenants.assembly import open_administration


class TestPlatform:
    """Embedded servers in a folder. What tests do to each other is kept apart by accounts and databases."""

    __test__ = False

    def __init__(self, folder: Path) -> None:
        self.embedded = EmbeddedPlatform(Settings(data=folder, nats_leaf_port=0))
        assert self.embedded.nats is not None
        assert self.embedded.postgres is not None
        self.nats = self.embedded.nats
        self.postgres = self.embedded.postgres

    def start(self) -> None:
        """Start the servers; they end with this process at the latest. Call it on the main thread."""
        asyncio.run(self.embedded.start())

    def stop(self) -> None:
        asyncio.run(self.embedded.stop())

    def attach(self) -> None:
        """Use the servers that another process has started in the same folder."""
        self.embedded.locate()

    @asynccontextmanager
    async def account(self, limits: claims.AccountLimits = claims.UNLIMITED_JETSTREAM) -> AsyncIterator[Broker]:
        """A NATS account of its own, as one of its users; deleted at the end."""
        operator = self.nats.identity.operator_signing
        key = Key.generate(Role.ACCOUNT)
        async with connect(self.nats.system, "testing") as system:
            accounts = AccountServer(system, operator)
            await accounts.push(claims.account_claims(operator, key.public, "testing", limits=limits))
            try:
                yield Broker(self.nats.url, claims.issue_user(key, "testing"))
            finally:
                await accounts.delete([key.public])

    @asynccontextmanager
    async def administration(self, **settings: Any) -> AsyncIterator[Administration]:
        """Tenants in a platform account and a database of their own; the accounts that they had are deleted, too."""
        async with self.account() as broker, self.database() as url:
            await ensure_schema(url, may_migrate=True)
            chosen = Settings(data=self.embedded.settings.data, **settings)
            async with open_administration(
                chosen, broker=broker, authority=self.nats.authority, database_url=url, secret=secrets.token_hex(16)
            ) as administration:
                try:
                    yield administration
                finally:
                    accounts = [administration.lanes.account_key(each) async for each in administration.registry.all()]
                    async with connect(self.nats.system, "testing") as system:
                        operator = self.nats.identity.operator_signing
                        if accounts:
                            await AccountServer(system, operator).delete([key.public for key in accounts])

    @asynccontextmanager
    async def database(self) -> AsyncIterator[str]:
        """The address of an empty database that the application's role owns; dropped at the end."""
        name = f"test_{uuid.uuid4().hex}"
        identifier, owner = sql.Identifier(name), sql.Identifier("tenantry")
        async with await psycopg.AsyncConnection.connect(
            self.postgres.address("postgres", "postgres"), autocommit=True
        ) as admin:
            await admin.execute(sql.SQL("create database {} owner {}").format(identifier, owner))
            try:
                yield self.postgres.url.removesuffix("/tenantry") + f"/{name}"
            finally:
                await admin.execute(sql.SQL("drop database {} with (force)").format(identifier))
