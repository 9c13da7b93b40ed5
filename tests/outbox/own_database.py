"""An application's own database: it has the outbox and nothing else of Tenantry."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg.rows import dict_row

from tenantry.event import Event, decode
from tenantry.postgres.migrations import Migrations
from tenantry.postgres.pool import connect


@dataclass(frozen=True)
class OwnDatabase:
    url: str

    def rows(self) -> list[dict[str, Any]]:
        """What is in the outbox, in the order in which it was written."""
        with psycopg.connect(self.url, row_factory=dict_row) as connection:
            question = """select o.*, l.tenant_id, l.channel from tenantry.outbox o
                          join tenantry.outbox_lanes l on l.id = o.lane order by o.id"""
            return connection.execute(question).fetchall()

    def events(self) -> list[Event]:
        return [decode(row["document"].encode()) for row in self.rows()]

    def event(self) -> Event:
        """The one that was emitted."""
        (event,) = self.events()
        return event

    def add_lane(self, tenant: str, channel: str = "events", payload: int = 100_000) -> int:
        with psycopg.connect(self.url) as connection:
            row = connection.execute(
                "insert into tenantry.outbox_lanes (tenant_id, channel, payload) values (%s, %s, %s) returning id",
                [tenant, channel, payload],
            ).fetchone()
        assert row
        return int(row[0])


async def make_own_database(url: str) -> OwnDatabase:
    async with connect(url, autocommit=True) as connection:
        await Migrations(outbox_only=True).apply(connection)
    database = OwnDatabase(url)
    for tenant, channel in (("acme", "events"), ("acme", "orders"), ("globex", "events")):
        database.add_lane(tenant, channel)
    return database
