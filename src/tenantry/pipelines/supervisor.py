"""Keeps the pipelines running, in one process at a time; another one waits to take over."""

from __future__ import annotations

import asyncio
import time
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Final

import psycopg
from psycopg_pool import PoolTimeout
from pyspark.sql import SparkSession

from tenantry.application import Tenantry
from tenantry.config import Settings
from tenantry.errors import DatabaseUnreachable
from tenantry.nats.keys import Key
from tenantry.pipelines.engine import Engine
from tenantry.pipelines.session import open_session
from tenantry.postgres.locks import Lease, Locks
from tenantry.telemetry import signal
from tenantry.tenants.lanes import Lanes
from tenantry.tenants.roster import Roster

READY = signal("pipelines.ready", "Spark runs, and the pipelines with it.", "pipelines", "seconds")

LOCK: Final = "pipelines"
LOOK_SECONDS: Final = 0.5
HANDOVER_SECONDS: Final = 5.0
ROSTER_SECONDS: Final = 30.0
_AWAY: Final = (psycopg.Error, PoolTimeout, DatabaseUnreachable)


class Supervisor:
    """A service."""

    name = "pipelines"

    def __init__(
        self,
        settings: Settings,
        application: Tenantry | None,
        *,
        roster: Roster,
        lanes: Lanes,
        platform_key: Key | None,
        database_url: str,
        folder: Path,
        spark: SparkSession | None = None,
    ) -> None:
        self._settings = settings
        self._application = application
        self._roster = roster
        self._lanes = lanes
        self._platform_key = platform_key
        self._database_url = database_url
        self._folder = folder
        self._given_spark = spark
        self._spark: SparkSession | None = None
        self.engine: Engine | None = None

    async def start(self) -> None:
        pass

    async def run(self) -> None:
        async with Locks.open(self._database_url) as locks:
            while True:
                try:
                    async with AsyncExitStack() as stack:
                        taking = stack.enter_async_context(locks.hold(LOCK))
                        # Without a database nobody leads, and what runs goes on; but somebody else may have taken over.
                        lease = await asyncio.wait_for(taking, HANDOVER_SECONDS if self.engine else None)
                        await self._lead(lease)
                except TimeoutError:
                    await self._close()
                except _AWAY:
                    await asyncio.sleep(LOOK_SECONDS)

    async def _lead(self, lease: Lease) -> None:
        if self.engine is None:
            began = time.monotonic()
            self.engine = await asyncio.to_thread(self._open, asyncio.get_running_loop())
            READY.emit(pipelines=sorted(self.engine.pipelines), seconds=time.monotonic() - began)
        while True:
            lease.require()
            await asyncio.to_thread(self.engine.keep)
            await asyncio.sleep(LOOK_SECONDS)

    async def _close(self) -> None:
        engine, self.engine = self.engine, None
        if engine is not None:
            await asyncio.to_thread(engine.close)

    async def stop(self) -> None:
        await self._close()
        if self._spark is not None and self._given_spark is None:
            await asyncio.to_thread(self._spark.stop)

    def kill(self) -> None:
        pass

    def _open(self, loop: asyncio.AbstractEventLoop) -> Engine:
        self._folder.mkdir(parents=True, exist_ok=True)
        self._spark = self._given_spark or open_session(
            "tenantry",
            self._folder,
            master=self._settings.spark_master,
            java=self._settings.java_home,
            config=self._settings.spark_config,
        )
        return Engine(
            self._spark,
            self._settings,
            self._application,
            roster=self._roster,
            lanes=self._lanes,
            platform_key=self._platform_key,
            database_url=self._database_url,
            refresh_roster=lambda: _wait(loop, self._roster),
            folder=self._folder,
        )


def _wait(loop: asyncio.AbstractEventLoop, roster: Roster) -> None:
    asyncio.run_coroutine_threadsafe(roster.refresh(), loop).result(ROSTER_SECONDS)
