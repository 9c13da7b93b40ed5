"""Pipelines on Spark, on the embedded servers: from the streams of twenty tenants into their tables and documents.

`delta_of_source` is how many events a second come into Delta tables, parsed and checked, written and committed, beside
how many the source alone reads into the noop sink: the same streams, in batches of the same size. Of each query the
first batch is not counted; both are timed by Spark's own account of the batches. Rounds alternate, and the median is
reported. Before that, tables are written once without being timed: a JVM is slow at what it has not done before.

`events_per_second` is for all of it at once: a backlog that is published while warehouse and projection run, from the
first publish until the last event is in its table and its document.

`emit_to_document_ms` is for events that 30 tenants emit, 20 a second each, through the outbox: from the moment their
transaction is committed until the document is there for others to read; those of the first seconds, in which Spark
still makes itself familiar with its queries, are not counted. `flooded_vs_quiet_p99` is the 99th percentile
of that while another tenant's flood arrives (300,000 events; not in a quick run), beside the same without, half of it
before and half of it after: a JVM is faster the longer it runs. What is emitted until the flood has been folded is
counted.
"""

from __future__ import annotations

import asyncio
import signal
import sys
import threading
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from multiprocessing import get_context
from pathlib import Path
from statistics import median, quantiles
from typing import Any, Final, NamedTuple

import msgspec
import psycopg

import nats_bulk
from nats_bulk import Message
from tenantry.application import Event, Tenantry
from tenantry.bench import Report, Say
from tenantry.bench.own_platform import own_platform, own_settings
from tenantry.config import Settings
from tenantry.embedded.child import Child
from tenantry.embedded.platform import EmbeddedPlatform
from tenantry.nats.connections import connect_bulk
from tenantry.outbox import emit_many
from tenantry.pipelines.engine import Engine
from tenantry.pipelines.session import open_session
from tenantry.postgres.queries import SqlFolder
from tenantry.tenants.administration import Administration
from tenantry.tenants.roster import Roster
from tenantry.tenants.spec import TenantSpec

ACTOR: Final = "bench"
NO_LIMIT: Final = {"publish_rate": 100_000_000, "publish_burst": 100_000_000, "storage": -1}
LOOK_SECONDS: Final = 0.005
DOCUMENTS: Final = 100
"""Of each tenant."""
EACH_SECOND: Final = 20
WARM_UP_SECONDS: Final = 6

_sql = SqlFolder("tenantry.bench")


class Size(NamedTuple):
    tenants: int
    batch: int
    batches: int
    rounds: int
    backlog: int
    emitters: int
    seconds: float
    flood: int


QUICK: Final = Size(tenants=20, batch=60_000, batches=3, rounds=1, backlog=6_000, emitters=30, seconds=8, flood=0)
FULL: Final = Size(
    tenants=20, batch=100_000, batches=4, rounds=3, backlog=200_000, emitters=30, seconds=30, flood=300_000
)

app = Tenantry("bench")


@app.projection("balances", types=["order.*"], key="data.customer", initial={"orders": 0, "total": 0})
def balances(state: dict[str, Any], event: Event) -> dict[str, Any]:
    state["orders"] += 1
    state["total"] += event.data["amount"]
    return state


def run(*, quick: bool, say: Say) -> Report:
    with own_settings() as settings:
        return asyncio.run(_run(settings, QUICK if quick else FULL, say))


async def _run(settings: Settings, size: Size, say: Say) -> Report:
    async with own_platform(settings) as (platform, administration):
        say("starting Spark, and making tenants and events")
        bench = _Bench(platform, administration, settings, size)
        await bench.prepare()
        try:
            say("warming up")
            await bench.warm_up()
            for number in range(size.rounds):
                say(f"tables beside the source alone, round {number + 1} of {size.rounds}")
                await bench.tables_and_source(number)
            await bench.put_tables_away()
            async with bench.running() as engine:
                say("a backlog into tables and documents")
                await bench.backlog(engine)
                say("single events, quiet and beside a flood")
                await bench.emitting("quiet", warm_up=WARM_UP_SECONDS)
                if size.flood:
                    await bench.emitting("flooded", flood=size.flood)
                    await bench.emitting("quiet")
        finally:
            await bench.close()
    return bench.report()


class _Bench:
    def __init__(
        self, platform: EmbeddedPlatform, administration: Administration, settings: Settings, size: Size
    ) -> None:
        self._platform = platform
        self._administration = administration
        self._size = size
        self._folder = settings.data.parent / "pipelines"
        self._settings = settings.model_copy(
            update={"lake": str(settings.data.parent / "lake"), "pipeline_batch": size.batch, "table_seconds": 0.5}
        )
        self._roster = Roster(administration.registry, administration.lanes)
        self._found: defaultdict[str, list[float]] = defaultdict(list)
        self._latencies: defaultdict[str, list[float]] = defaultdict(list)
        self._spark: Any = None
        # Applications emit in processes of their own: here they would take the interpreter from Spark's driver.
        self._elsewhere = ProcessPoolExecutor(1, get_context("spawn"))

    async def prepare(self) -> None:
        size = self._size
        self._spark = asyncio.create_task(asyncio.to_thread(open_session, "bench", self._folder))
        self._elsewhere.submit(time.monotonic)
        names = [f"table-{number}" for number in range(size.tenants)] + [
            f"many-{number}" for number in range(size.tenants)
        ]
        names += [f"emit-{number}" for number in range(size.emitters)] + ["flood"]
        specs = [TenantSpec(id=name, plan="pro", overrides=NO_LIMIT) for name in names]
        await asyncio.gather(*(self._administration.put(spec, ACTOR) for spec in specs))
        each = size.batch * size.batches // size.tenants
        for number in range(size.tenants):
            await self._publish(f"table-{number}", each)
        await self._roster.refresh()
        self._spark = await self._spark

    async def close(self) -> None:
        self._elsewhere.shutdown()
        if not isinstance(self._spark, asyncio.Task):
            await asyncio.to_thread(self._spark.stop)

    # -- into tables, and the source alone ----------------------------------------------------------------------------

    async def warm_up(self) -> None:
        await self._tables(-1, batches=1)

    async def tables_and_source(self, number: int) -> None:
        rates = {}
        for kind in ("source", "tables") if number % 2 == 0 else ("tables", "source"):
            rates[kind] = await (self._source(number) if kind == "source" else self._tables(number))
            self._found[f"{kind}_events_per_second"].append(rates[kind])
        self._found["delta_of_source"].append(rates["tables"] / rates["source"])

    async def put_tables_away(self) -> None:
        """What follows would read all of these events once more, and be measured beside that."""
        names = [f"table-{number}" for number in range(self._size.tenants)]
        await asyncio.gather(*(self._administration.suspend(name, ACTOR) for name in names))
        await self._roster.refresh()

    async def _source(self, number: int) -> float:
        with self._engine(None) as engine:
            assignment = engine.assign(f"noop-{number}", "events")
            frame = engine.reader.stream(
                f"noop-{number}",
                lambda: [stream for stream in assignment.streams_of("shared") if stream.group.startswith("table-")],
                most=self._size.batch,
            )
            writer = frame.writeStream.format("noop").option("checkpointLocation", str(self._folder / f"noop-{number}"))
            query = writer.trigger(processingTime="0 seconds").start()
            try:
                return await self._rate(lambda: query.recentProgress)
            finally:
                await asyncio.to_thread(query.stop)

    async def _tables(self, number: int, batches: int | None = None) -> float:
        """A warehouse under another name each time, so that it begins from nothing."""
        folder = self._folder / f"round-{number}"
        with self._engine(None, folder=folder, lake=str(folder / "lake"), name=f"warehouse-{number}") as engine:
            (pipeline,) = engine.pipelines.values()
            pipeline.keep()
            return await self._rate(lambda: pipeline.queries["shared"].recent_progress, batches)

    async def _rate(self, progress: Callable[[], Iterable[Any]], batches: int | None = None) -> float:
        """Events a second in the batches after the first, as long as they are full; all that there are, unless told."""
        while True:
            full = [each for each in progress() if each["numInputRows"] >= self._size.batch]
            if len(full) >= (batches or self._size.batches):
                steady = full[1:] or full
                seconds = sum(each["durationMs"]["triggerExecution"] for each in steady) / 1000
                return float(sum(each["numInputRows"] for each in steady) / seconds)
            await asyncio.sleep(0.05)

    # -- all of it ----------------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Engine]:
        relay = Child("relay", self._folder, signal.SIGTERM)
        relay.spawn([sys.executable, "-m", "tenantry", "serve", "relay"], self._platform.environment())
        usual = Settings()
        with self._engine(app, pipeline_batch=usual.pipeline_batch, table_seconds=usual.table_seconds) as engine:
            await asyncio.to_thread(engine.keep)
            try:
                yield engine
            finally:
                await relay.stop()

    async def backlog(self, engine: Engine) -> None:  # noqa: ARG002
        each = self._size.backlog // self._size.tenants
        names = [f"many-{number}" for number in range(self._size.tenants)]
        # Everything that only the first batches need is behind them.
        for name in names:
            await self._publish(name, 10)
        await self._until({("balances", name): 10 for name in names} | {("warehouse", name): 10 for name in names})
        began = time.perf_counter()
        for name in names:
            await self._publish(name, each)
        ends = {(pipeline, name): each + 10 for name in names for pipeline in ("balances", "warehouse")}
        await self._until(ends)
        self._found["events_per_second"].append(each * len(names) / (time.perf_counter() - began))

    async def emitting(self, kind: str, *, warm_up: float = 0, flood: int = 0) -> None:
        names = [f"emit-{number}" for number in range(self._size.emitters)]
        emitting = asyncio.get_running_loop().run_in_executor(
            self._elsewhere, emit_and_watch, self._platform.database_url, names, warm_up, self._size.seconds, flood
        )
        if flood:
            self._found["flood_seconds"].append(await self._flood())
        self._latencies[kind] += await emitting
        if flood:
            # Its table comes later, and what follows is not to be measured beside that.
            await self._until({("warehouse", "flood"): flood})

    async def _flood(self) -> float:
        began = time.perf_counter()
        await self._publish("flood", self._size.flood)
        await self._until({("balances", "flood"): self._size.flood})
        return time.perf_counter() - began

    async def _publish(self, tenant: str, count: int) -> None:
        lane = await self._administration.lanes.resolve(tenant, "events")
        subject = f"{lane.prefix}.order.created"

        def send() -> None:
            with connect_bulk(lane.broker, "bench-pipeline") as connection:
                events = [Message(subject, _event(tenant, number)) for number in range(count)]
                nats_bulk.publish(connection, events).raise_for_errors()

        await asyncio.to_thread(send)

    async def _until(self, wanted: dict[tuple[str, str], int]) -> None:
        while True:
            async with self._administration.pool.connection() as connection:
                rows = await _sql.fetch_all(connection, "lane_positions", {"pipelines": ["balances", "warehouse"]})
            at = {(row["pipeline"], row["tenant_id"]): row["sequence"] for row in rows}
            if all(at.get(lane, 0) >= sequence for lane, sequence in wanted.items()):
                return
            await asyncio.sleep(0.02)

    @contextmanager
    def _engine(
        self, application: Tenantry | None, *, folder: Path | None = None, name: str = "warehouse", **settings: Any
    ) -> Iterator[Engine]:
        loop = asyncio.get_running_loop()
        engine = Engine(
            self._spark,
            self._settings.model_copy(update=settings),
            application,
            roster=self._roster,
            lanes=self._administration.lanes,
            platform_key=self._platform.account_key,
            database_url=self._platform.database_url,
            refresh_roster=lambda: asyncio.run_coroutine_threadsafe(self._roster.refresh(), loop).result(30),
            folder=folder or self._folder,
            warehouse=name,
        )
        try:
            yield engine
        finally:
            engine.close()

    def report(self) -> Report:
        found = {name: median(values) for name, values in self._found.items()}
        figures = {name: found[name] for name in found if name.endswith("_per_second") or name == "flood_seconds"}
        ratios = {"delta_of_source": found["delta_of_source"]}
        cuts = {kind: quantiles(latencies, n=100) for kind, latencies in self._latencies.items()}
        for kind, name in (("quiet", "emit_to_document_ms"), ("flooded", "flooded_emit_to_document_ms")):
            if kind in cuts:
                figures |= {f"{name}_p50": 1000 * cuts[kind][49], f"{name}_p99": 1000 * cuts[kind][98]}
        if "flooded" in cuts:
            ratios["flooded_vs_quiet_p99"] = cuts["flooded"][98] / cuts["quiet"][98]
        return Report(bench="pipeline", figures=figures, ratios=ratios)


def emit_and_watch(database_url: str, names: list[str], warm_up: float, seconds: float, flood: int) -> list[float]:
    """Emit for so long after warming up, and until the flood has been folded; how long each event then took."""
    rounds = round(warm_up * EACH_SECOND)
    with psycopg.connect(database_url) as connection, _Watch(database_url, names) as watch:
        deadline = time.monotonic() + warm_up + seconds
        while time.monotonic() < deadline or watch.at("flood") < flood:
            began = time.monotonic()
            with connection.transaction():
                emit_many(connection, [_order(name, len(watch.sent)) for name in names])
            watch.sent.append(time.monotonic())
            time.sleep(max(0.0, began + 1 / EACH_SECOND - time.monotonic()))
        watch.finish()
        return watch.latencies[rounds * len(names) :]


class _Watch:
    """Sees from outside when each event has come into its document: how far each lane is, every few milliseconds."""

    def __init__(self, database_url: str, names: list[str]) -> None:
        self._url = database_url
        self._names = names
        self._ends = threading.Event()
        self._positions: dict[str, int] = {}
        self._first: dict[str, int] = {}
        self._seen = dict.fromkeys(names, 0)
        self.sent: list[float] = []
        """When the events of each round were committed; one of each tenant."""
        self.latencies: list[float] = []
        self._thread = threading.Thread(target=self._look, daemon=True)

    def __enter__(self) -> _Watch:
        with psycopg.connect(self._url, autocommit=True) as connection:
            self._first = self._positions = _positions(connection)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.set()
        self._thread.join()

    def at(self, name: str) -> int:
        return self._positions.get(name, 0)

    def finish(self) -> None:
        """Wait for the last one."""
        while len(self.latencies) < len(self.sent) * len(self._names):
            time.sleep(LOOK_SECONDS)

    def _look(self) -> None:
        with psycopg.connect(self._url, autocommit=True) as connection:
            while not self._ends.wait(LOOK_SECONDS):
                self._positions = _positions(connection)
                now = time.monotonic()
                for name in self._names:
                    # What is there already may not have been noted yet as sent; then it is seen the next time.
                    arrived = min(self._positions.get(name, 0) - self._first.get(name, 0), len(self.sent))
                    self.latencies += [now - self.sent[number] for number in range(self._seen[name], arrived)]
                    self._seen[name] = max(self._seen[name], arrived)


def _positions(connection: psycopg.Connection[Any]) -> dict[str, int]:
    rows = connection.execute(_sql.text("lane_positions"), {"pipelines": ["balances"]}).fetchall()
    return {tenant: sequence for _, tenant, sequence in rows}


def _order(tenant: str, number: int) -> dict[str, Any]:
    return {"tenant": tenant, "type": "order.created", "data": {"customer": f"c{number % DOCUMENTS}", "amount": 1}}


def _event(tenant: str, number: int) -> bytes:
    return msgspec.json.encode(
        {
            "specversion": "1.0",
            "id": f"{tenant}-{number}",
            "source": "/bench",
            "type": "order.created",
            "time": "2026-11-15T10:00:00.000000Z",
            "tenantid": tenant,
            "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            "datacontenttype": "application/json",
            "data": {"customer": f"c{number % DOCUMENTS}", "amount": 1},
        }
    )
