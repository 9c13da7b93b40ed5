"""Pipelines that run inside a test, on the Spark that all tests of a worker share."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import psycopg
from deltalake import DeltaTable
from pyspark.sql import SparkSession

import nats_bulk
from nats_bulk import Message
from tenantry.application import Tenantry
from tenantry.config import Settings
from tenantry.nats.connections import connect_bulk
from tenantry.pipelines.engine import Engine
from tenantry.tenants.administration import Administration
from tenantry.tenants.roster import Roster
from tenantry.tenants.spec import TenantSpec

PATIENCE = 120.0


def event(number: int, type: str = "order.created", **data: Any) -> bytes:
    """An event as the relay would publish it."""
    return json.dumps(
        {
            "specversion": "1.0",
            "id": f"event-{number}",
            "source": "/shop",
            "type": type,
            "subject": f"order-{number}",
            "time": "2026-11-15T10:00:00.123456Z",
            "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            "data": {"number": number} | data,
        }
    ).encode()


class Running:
    """The pipelines of an application, and the tenants whose events they read."""

    def __init__(self, administration: Administration, spark: SparkSession, folder: Path, settings: Settings) -> None:
        self.administration = administration
        self.spark = spark
        self.folder = folder
        self.settings = settings
        self.database_url = str(administration.pool.conninfo)
        self.roster = Roster(administration.registry, administration.lanes)
        self.engine: Engine | None = None

    async def tenant(self, id: str, tier: str = "stream", **limits: Any) -> None:
        await self.administration.put(TenantSpec(id=id, tier=tier, overrides=limits), "test")

    async def change(self, id: str, **limits: Any) -> None:
        await self.administration.put(TenantSpec(id=id, overrides=limits), "test", must_exist=True)

    async def publish(self, tenant: str, events: Iterable[bytes], channel: str = "events") -> None:
        """To the tenant's lane; what an event is called in its subject is what it says itself, if it says anything."""
        lane = await self.administration.lanes.resolve(tenant, channel)
        messages = [Message(f"{lane.prefix}.{_type(each)}", each) for each in events]

        def send() -> None:
            with connect_bulk(lane.broker, "test") as connection:
                nats_bulk.publish(connection, messages).raise_for_errors()

        await asyncio.to_thread(send)

    @asynccontextmanager
    async def pipelines(self, application: Tenantry | None = None) -> AsyncIterator[Engine]:
        """Run them, as `serve pipeline` does."""
        await self.roster.refresh()
        loop = asyncio.get_running_loop()
        self.engine = engine = await asyncio.to_thread(self._open, application, loop)
        keeping = asyncio.create_task(self._keep(engine))
        try:
            yield engine
        finally:
            keeping.cancel()
            await asyncio.gather(keeping, return_exceptions=True)
            await asyncio.to_thread(engine.close)

    def _open(self, application: Tenantry | None, loop: asyncio.AbstractEventLoop) -> Engine:
        return Engine(
            self.spark,
            self.settings,
            application,
            roster=self.roster,
            lanes=self.administration.lanes,
            platform_key=None,
            database_url=self.database_url,
            refresh_roster=lambda: asyncio.run_coroutine_threadsafe(self.roster.refresh(), loop).result(30),
            folder=self.folder,
        )

    async def _keep(self, engine: Engine) -> None:
        while True:
            await asyncio.to_thread(engine.keep)
            await asyncio.sleep(0.1)
            await self.roster.refresh()

    # -- what came of it --------------------------------------------------------------------------------------------

    async def until(self, question: Callable[[], Awaitable[Any]], what: str) -> None:
        """Wait until the answer is true."""
        deadline = asyncio.get_running_loop().time() + PATIENCE
        while not await question():
            assert asyncio.get_running_loop().time() < deadline, f"{what}: {await self.lanes()}"
            await asyncio.sleep(0.02)

    async def until_at(self, pipeline: str, tenant: str, sequence: int, channel: str = "events") -> None:
        async def is_there() -> bool:
            found = await self.lanes()
            return bool(found.get((pipeline, tenant, channel), {}).get("sequence", 0) >= sequence)

        await self.until(is_there, f"{pipeline} should be at {sequence} of {tenant}/{channel}")

    async def until_parked(self, pipeline: str, tenant: str, channel: str = "events") -> dict[str, Any]:
        async def is_parked() -> bool:
            found = await self.lanes()
            return found.get((pipeline, tenant, channel), {}).get("parked_at") is not None

        await self.until(is_parked, f"{pipeline} should be parked on {tenant}/{channel}")
        return (await self.lanes())[pipeline, tenant, channel]

    async def lanes(self) -> dict[tuple[str, str, str], dict[str, Any]]:
        rows = await self.ask("select * from tenantry.pipeline_lanes")
        return {(row["pipeline"], row["tenant_id"], row["channel"]): row for row in rows}

    async def ask(self, question: str, *parameters: object) -> list[dict[str, Any]]:
        async with await psycopg.AsyncConnection.connect(
            self.database_url, autocommit=True, row_factory=psycopg.rows.dict_row
        ) as connection:
            await connection.execute("select set_config('tenantry.tenant', '*', false)")
            cursor = await connection.execute(question, parameters)
            return await cursor.fetchall() if cursor.description else []

    def rows(self, tenant: str, table: str = "events") -> list[dict[str, Any]]:
        """A table as it is, in the order of its events."""
        found = DeltaTable(f"{self.folder}/lake/tenant={tenant}/{table}").to_pyarrow_table().to_pylist()
        return sorted(found, key=lambda row: row.get("sequence", 0))

    async def documents(self, tenant: str, projection: str) -> dict[str, Any]:
        rows = await self.ask(
            """select d.id, d.document from tenantry.documents d
               join tenantry.pipeline_lanes l on l.pipeline = d.projection and l.tenant_id = d.tenant_id
                   and l.channel = d.channel and l.generation = d.generation
               where d.tenant_id = %s and d.projection = %s and d.document is not null""",
            tenant,
            projection,
        )
        return {row["id"]: row["document"] for row in rows}


def _type(event: bytes) -> str:
    try:
        return str(json.loads(event)["type"])
    except (ValueError, KeyError, TypeError):
        return "order.created"
