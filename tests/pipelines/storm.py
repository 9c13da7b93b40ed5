"""A platform on which everything may be killed: servers of its own, a relay, producers, and the pipelines' process."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import psutil
import psycopg
from deltalake import DeltaTable

import nats_bulk
from tenantry.config import Settings
from tenantry.embedded.platform import EmbeddedPlatform
from tenantry.nats.connections import connect_bulk
from tenantry.outbox.service import RelayService
from tenantry.postgres.migrations import ensure_schema
from tenantry.tenants.administration import Administration
from tenantry.tenants.assembly import open_administration
from tenantry.tenants.lanes import Lane
from tenantry.tenants.roster import Roster
from tenantry.tenants.spec import TenantSpec
from tests.conftest import open_to_others
from tests.pipelines.shop import fold

PATIENCE = 180.0
PIPELINES = ("warehouse", "orders", "customers")
TENANTS = {"acme": "stream", "globex": "account", "pooly": "pooled", "poolz": "pooled"}


class Storm:
    def __init__(self, folder: Path, platform: EmbeddedPlatform, administration: Administration) -> None:
        self.folder = folder
        self.platform = platform
        self.administration = administration
        self.emitted: dict[str, int] = dict.fromkeys(TENANTS, 0)
        self.driver: subprocess.Popen[bytes] | None = None
        self._settings: dict[str, str] = {}
        self._lanes: dict[str, Lane] = {}
        self._may_emit = True

    @classmethod
    @asynccontextmanager
    async def brewing(cls, folder: Path, **settings: str) -> AsyncIterator[Storm]:
        open_to_others(folder)
        platform = EmbeddedPlatform(Settings(data=folder / "data"))
        await platform.start()
        try:
            await ensure_schema(platform.database_url, may_migrate=True)
            async with open_administration(
                platform.settings,
                broker=platform.broker,
                authority=platform.authority,
                database_url=platform.database_url,
                secret=platform.secret,
            ) as administration:
                for tenant, tier in TENANTS.items():
                    await administration.put(TenantSpec(id=tenant, tier=tier), "test")
                storm = cls(folder, platform, administration)
                storm._settings = settings
                async with storm._relaying(), storm._emitting():
                    try:
                        yield storm
                    finally:
                        storm.kill_driver()
        finally:
            await platform.stop()

    @asynccontextmanager
    async def _relaying(self) -> AsyncIterator[None]:
        roster = Roster(self.administration.registry, self.administration.lanes)
        relay = RelayService(self.platform.database_url, roster, self.administration.lanes, self.platform.settings)
        await roster.start()
        await relay.start()
        tasks = [asyncio.create_task(roster.run()), asyncio.create_task(relay.run())]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await relay.stop()

    @asynccontextmanager
    async def _emitting(self) -> AsyncIterator[None]:
        task = asyncio.create_task(self._emit())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _emit(self) -> None:
        while self._may_emit:
            try:
                async with await psycopg.AsyncConnection.connect(self.platform.database_url) as connection:
                    for tenant in TENANTS:
                        number = self.emitted[tenant]
                        data = json.dumps({"number": number, "customer": f"c{number % 7}", "amount": number + 1})
                        await connection.execute(
                            "select tenantry.emit(%s, 'order.created', %s::jsonb, id => %s)",
                            (tenant, data, f"{tenant}-{number}"),
                        )
            except psycopg.Error:
                # Whether it was committed is not known; an event that is emitted twice has one id, and is stored once.
                await asyncio.sleep(0.1)
                continue
            self.emitted = {tenant: number + 1 for tenant, number in self.emitted.items()}
            await asyncio.sleep(0.03)

    # -- what may happen ----------------------------------------------------------------------------------------------

    def start_driver(self, die_at: str = "") -> None:
        """`die_at`: PIPELINE:STEP:N, the N-th time that the pipeline comes to the step."""
        settings = {
            "TENANTRY_APP": "tests.pipelines.shop:app",
            "TENANTRY_DATA": str(self.folder / "driver"),
            "TENANTRY_TABLE_SECONDS": "0.2",
            "TENANTRY_PIPELINE_RESTART_SECONDS": "0.2",
            "TENANTRY_LOG_FORMAT": "json",
        }
        with (self.folder / "driver.log").open("ab") as log:
            self.driver = subprocess.Popen(
                [sys.executable, "-m", "tests.pipelines.doomed_driver", die_at],
                env=os.environ | self.platform.environment() | settings | self._settings,
                stdout=log,
                stderr=log,
            )

    async def until_driver_died(self) -> None:
        assert self.driver is not None
        await self._until(self._is_dead, "the driver should have killed itself")

    async def _is_dead(self) -> bool:
        assert self.driver is not None
        return self.driver.poll() is not None

    def kill_driver(self) -> None:
        if self.driver is not None and self.driver.poll() is None:
            self.driver.kill()
            self.driver.wait()

    def kill_a_python_worker(self) -> bool:
        """What runs inside a task; whether there was one."""
        assert self.driver is not None
        for process in psutil.Process(self.driver.pid).children(recursive=True):
            try:
                # The one that has children makes the others.
                if "pyspark.daemon" in process.cmdline() and not process.children():
                    process.kill()
                    return True
            except psutil.Error:
                continue
        return False

    async def restart_broker(self) -> None:
        assert self.platform.nats is not None
        self.platform.nats.child.kill()
        process = self.platform.nats.child.process
        assert process is not None
        await asyncio.to_thread(process.wait)
        await self.platform.nats.start()

    async def restart_database(self) -> None:
        assert self.platform.postgres is not None
        await self.platform.postgres.child.stop()
        await self.platform.postgres.start()

    async def until_more(self, pipeline: str, more: int = 30) -> None:
        """Wait until a pipeline has come further with every tenant."""
        before = await self.positions()

        async def have_come() -> bool:
            after = await self.positions()
            return all(after.get((pipeline, t), 0) >= before.get((pipeline, t), 0) + more for t in TENANTS)

        await self._until(have_come, f"{pipeline} should go on")

    # -- what came of it ----------------------------------------------------------------------------------------------

    async def calm(self) -> None:
        """Emit no more, and wait until everything has arrived."""
        self._may_emit = False
        ends = {tenant: await self._lane_end(tenant) for tenant in TENANTS}

        async def is_done() -> bool:
            nonlocal ends
            ends = {tenant: await self._lane_end(tenant) for tenant in TENANTS}
            lanes = {tenant: len(await asyncio.to_thread(self.lane, tenant)) for tenant in TENANTS}
            at = await self.positions()
            return all(lanes[tenant] >= self.emitted[tenant] for tenant in TENANTS) and all(
                at.get((pipeline, tenant), 0) >= ends[tenant] for pipeline in PIPELINES for tenant in TENANTS
            )

        await self._until(is_done, "everything should arrive")

    async def assert_each_event_once(self) -> None:
        for tenant in TENANTS:
            lane = await asyncio.to_thread(self.lane, tenant)
            assert sorted({each["number"] for each in lane}) == list(range(len(lane))), tenant
            rows = self.rows(tenant, "events")
            assert [json.loads(row["data"]) for row in rows] == lane, tenant
            assert [row["amount"] for row in self.rows(tenant, "orders")] == [float(each["amount"]) for each in lane]
            assert await self.documents(tenant) == fold(lane), tenant

    def lane(self, tenant: str) -> list[dict[str, Any]]:
        """The data of all events of a tenant, as its lane has them."""
        lane = self._lanes[tenant]
        with connect_bulk(lane.broker, "test") as connection:
            state = json.loads(connection.request(f"$JS.API.STREAM.INFO.{lane.stream}", b""))["state"]
            batches = nats_bulk.read_range(connection, lane.stream, state["first_seq"], state["last_seq"])
            return [
                json.loads(payload)["data"]
                for batch in (batches if state["messages"] else ())
                for subject, payload in zip(batch.subjects, batch.payloads, strict=True)
                if subject.startswith(f"{lane.prefix}.")
            ]

    async def _lane_end(self, tenant: str) -> int:
        self._lanes[tenant] = lane = await self.administration.lanes.resolve(tenant, "events")
        async with self.administration.backbone.jetstream(lane.broker) as jetstream:
            return await jetstream.last_sequence(lane.stream, lane.subjects)

    async def positions(self) -> dict[tuple[str, str], int]:
        rows = await self._ask(
            "select pipeline, tenant_id, sequence from tenantry.pipeline_lanes where channel = 'events'"
        )
        return {(pipeline, tenant): sequence for pipeline, tenant, sequence in rows}

    async def documents(self, tenant: str) -> dict[str, Any]:
        rows = await self._ask("select id, document from tenantry.documents where tenant_id = %s", tenant)
        return dict(rows)

    def rows(self, tenant: str, table: str) -> list[dict[str, Any]]:
        table_path = self.folder / "driver" / "lake" / f"tenant={tenant}" / table
        return sorted(DeltaTable(table_path).to_pyarrow_table().to_pylist(), key=lambda row: row["sequence"])

    async def _ask(self, question: str, *parameters: object) -> list[tuple[Any, ...]]:
        async with await psycopg.AsyncConnection.connect(self.platform.database_url, autocommit=True) as connection:
            await connection.execute("select set_config('tenantry.tenant', '*', false)")
            return await (await connection.execute(question, parameters)).fetchall()

    async def _until(self, question: Any, what: str) -> None:
        deadline = asyncio.get_running_loop().time() + PATIENCE
        while True:
            try:
                if await question():
                    return
            except psycopg.Error:
                pass
            log = (self.folder / "driver.log").read_text()[-6000:] if (self.folder / "driver.log").exists() else ""
            assert asyncio.get_running_loop().time() < deadline, f"{what}; {await self.positions()}\n{log}"
            await asyncio.sleep(0.05)
