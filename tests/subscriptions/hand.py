"""A worker in a process of its own, which a test may kill: its handler has effects in PostgreSQL.

Run as `python -m tests.subscriptions.hand`, with a Place as JSON in its standard input.
"""

from __future__ import annotations

import asyncio
import os
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import msgspec
import psycopg

from nats_bulk import Credentials
from tenantry import telemetry
from tenantry.application import Context, Event, Tenantry
from tenantry.config import Settings
from tenantry.nats.connections import Broker
from tenantry.service import run_services
from tenantry.subscriptions.worker import Limits, Worker
from tenantry.tenants.assembly import open_administration
from tenantry.tenants.roster import Roster

TABLES = """
create table completed (id bigint generated always as identity, tenant text, number int, worker text, fence bigint);
create table effects (id bigint generated always as identity, tenant text, number int);
create table collisions (tenant text, number int, worker text);
"""


class Place(msgspec.Struct):
    nats: str
    database: str
    secret: str
    jwt: str = ""
    seed: str = ""
    failing: float = 0.2
    """How many of its attempts fail."""
    id: str = ""

    def start(self, log: Path) -> subprocess.Popen[bytes]:
        with log.open("ab") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", "tests.subscriptions.hand"],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                cwd=Path(__file__).parents[2],
            )
        assert process.stdin is not None
        process.stdin.write(msgspec.json.encode(self))
        process.stdin.close()
        return process


class Hand:
    """Handles events so that whatever goes wrong with their order shows."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._connections: list[Any] = []

    async def handle(self, event: Event[int], context: Context) -> None:
        connection = self._connections.pop() if self._connections else await self._connect()
        try:
            async with connection.transaction():
                await self._act(connection, event, context)
            # Past the commit: from here on it counts as completed.
            await connection.execute(
                "insert into completed (tenant, number, worker, fence) values (%s, %s, %s, %s)",
                (event.tenant, event.data, context.worker, context.fence),
            )
        except BaseException:
            await connection.close()
            raise
        self._connections.append(connection)

    async def _act(self, connection: Any, event: Event[int], context: Context) -> None:
        lock = "select pg_try_advisory_xact_lock(hashtext(%s))"
        row = await (await connection.execute(lock, (event.tenant,))).fetchone()
        if not row[0]:
            async with await self._connect() as other:
                await other.execute(
                    "insert into collisions values (%s, %s, %s)", (event.tenant, event.data, context.worker)
                )
        is_first = await context.once(connection)
        if random.random() < self._place.failing:
            raise RuntimeError("not this time")
        if is_first:
            await connection.execute("insert into effects (tenant, number) values (%s, %s)", (event.tenant, event.data))

    async def _connect(self) -> Any:
        return await psycopg.AsyncConnection.connect(self._place.database, autocommit=True)


def log(signal: telemetry.Signal, fields: telemetry.Fields) -> None:
    if signal.level != "debug":
        print(f"{time.time():.3f}", os.getpid(), signal.name, fields, flush=True)


async def main(place: Place) -> None:
    telemetry.subscribe(log)
    app = Tenantry("fire")
    app.subscriber("hands", retries=1_000, backoff=[0.01, 0.05])(Hand(place).handle)
    broker = Broker(place.nats, Credentials(jwt=place.jwt, seed=place.seed))
    async with open_administration(
        Settings(database_pool=4), broker=broker, authority=None, database_url=place.database, secret=place.secret
    ) as administration:
        roster = Roster(administration.registry, administration.lanes)
        worker = Worker(
            app.name,
            app.subscribers.values(),
            broker=broker,
            roster=roster,
            lanes=administration.lanes,
            pool=administration.pool,
            limits=Limits(drain_seconds=5),
            id=place.id or f"hand-{os.getpid()}",
        )
        await run_services([roster, worker])


if __name__ == "__main__":
    asyncio.run(main(msgspec.json.decode(sys.stdin.buffer.read(), type=Place)))
