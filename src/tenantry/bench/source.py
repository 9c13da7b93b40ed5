"""The Spark source beside those who read without Spark, on the embedded server, with 250-byte events.

`vs_client` is how many events a second a streaming query reads from fifty streams into the noop sink, beside one
process of the official client that pulls and acknowledges those of the same streams, all of them at once, 500 a fetch.
`of_wire_limit` is the same beside one process that reads the same streams by `nats_bulk.read_range` and does nothing
with them. `streams_1000_vs_10` is how long a batch takes that is spread over a thousand streams, beside a batch of as
many events from ten.

A query is timed as it runs steadily: from the end of its first batch to the end of its last, by Spark's own account of
them, with all that belongs to a batch and what lies between. Not counted are the start of Spark, a query to warm up,
the start of each query with its first batch, and the making of the client's consumers. All cores are shared by Spark
and the server, as they are by the others and the server. In each round everything is measured once, every other round
backwards; a ratio is taken within a round, and what is reported is the median of the rounds, of which a quick run on a
slow machine has two and else three. Every query must have read all of its streams to their ends, and each batch as many
events as it should; so must the others.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from math import inf
from pathlib import Path
from statistics import median
from typing import Any, Final, NamedTuple

from nats.aio.msg import Msg
from nats.js import JetStreamContext

import nats_bulk
from nats_bulk import Connection, Message
from tenantry.bench import Report, Say
from tenantry.bench.own_platform import own_settings
from tenantry.config import Settings
from tenantry.embedded.platform import EmbeddedPlatform, use_platform
from tenantry.nats.connections import Broker, connect, connect_bulk
from tenantry.pipelines.session import local_session

PAYLOAD: Final = b"x" * 250
AT_ONCE: Final = 500
CREATE_SECONDS: Final = 30.0
LEAST_ROUNDS: Final = 2

Measure = Callable[[], Awaitable[None]]


class Size(NamedTuple):
    rounds: int
    batches: int
    """Of each query; the first is not counted."""
    batch: int
    """Events in a batch from fifty streams."""
    spread_batch: int
    """Events in a batch from a thousand streams, and from ten."""
    client_each: int
    """Events that the client reads from each of the fifty streams, for it is slow."""
    seconds: float
    """Another round begins only if it will probably end by then."""


QUICK: Final = Size(rounds=3, batches=2, batch=200_000, spread_batch=50_000, client_each=400, seconds=43)
FULL: Final = Size(rounds=7, batches=3, batch=300_000, spread_batch=200_000, client_each=2000, seconds=inf)


@dataclass(frozen=True, slots=True)
class Streams:
    """Streams that a query reads in so many batches of so many events."""

    prefix: str
    count: int
    batch: int
    batches: int

    @property
    def names(self) -> list[str]:
        return [f"{self.prefix}_{number}" for number in range(self.count)]

    @property
    def each(self) -> int:
        return self.batch * self.batches // self.count

    @property
    def events(self) -> int:
        return self.batch * self.batches


@dataclass(frozen=True, slots=True)
class Steady:
    """The batches of a query after its first."""

    batch_seconds: float
    latest_offset_ms: float
    tasks: int


def run(*, quick: bool, say: Say) -> Report:
    with own_settings() as settings:
        return asyncio.run(_run(settings, QUICK if quick else FULL, say))


async def _run(settings: Settings, size: Size, say: Say) -> Report:
    began = time.monotonic()
    fifty = Streams("FIFTY", 50, size.batch, size.batches)
    few = Streams("FEW", 10, size.spread_batch, size.batches)
    many = Streams("MANY", 1000, size.spread_batch, size.batches)
    async with use_platform(settings) as platform:
        say("filling the streams and starting Spark")
        # Side by side: Spark takes long to start, and neither is measured.
        spark, _ = await asyncio.gather(
            asyncio.to_thread(_Spark, platform, settings.data.parent),
            asyncio.to_thread(_fill, platform.broker, [fifty, few, many]),
        )
        bench = _Bench(spark, platform.broker, size.client_each)
        try:
            say("warming up")
            spark.read(few)
            readings = [bench.by_client(fifty), bench.by_spark(fifty), bench.by_wire(fifty)]
            readings += [bench.by_spark(few), bench.by_spark(many)]
            for number in range(1, size.rounds + 1):
                say(f"round {number} of {size.rounds}")
                started = time.monotonic()
                for measure in readings if number % 2 else reversed(readings):
                    await measure()
                now = time.monotonic()
                if number >= LEAST_ROUNDS and now - began + now - started > size.seconds:
                    break
        finally:
            spark.stop()
    return _report(bench.found)


class _Bench:
    """Measures who reads what, and keeps a figure of each round."""

    def __init__(self, spark: _Spark, broker: Broker, client_each: int) -> None:
        self._spark = spark
        self._broker = broker
        self._client_each = client_each
        self.found: defaultdict[str, list[float]] = defaultdict(list)

    def by_client(self, streams: Streams) -> Measure:
        async def measure() -> None:
            rate = await _read_by_client(self._broker, streams, self._client_each)
            self.found["client_events_per_second"].append(rate)

        return measure

    def by_wire(self, streams: Streams) -> Measure:
        async def measure() -> None:
            self.found["wire_events_per_second"].append(_read_by_wire(self._broker, streams))

        return measure

    def by_spark(self, streams: Streams) -> Measure:
        async def measure() -> None:
            steady = self._spark.read(streams)
            of_these = f"streams_{streams.count}"
            self.found[f"{of_these}_events_per_second"].append(streams.batch / steady.batch_seconds)
            self.found[f"{of_these}_batch_ms"].append(steady.batch_seconds * 1000)
            self.found[f"{of_these}_latest_offset_ms"].append(steady.latest_offset_ms)
            self.found[f"{of_these}_tasks"].append(steady.tasks)

        return measure


def _report(measured: dict[str, list[float]]) -> Report:
    def ratio(one: str, other: str) -> float:
        return median(a / b for a, b in zip(measured[one], measured[other], strict=True))

    return Report(
        bench="source",
        figures={
            "rounds": len(measured["client_events_per_second"]),
            **{name: median(values) for name, values in sorted(measured.items())},
        },
        ratios={
            "vs_client": ratio("streams_50_events_per_second", "client_events_per_second"),
            "of_wire_limit": ratio("streams_50_events_per_second", "wire_events_per_second"),
            "streams_1000_vs_10": ratio("streams_1000_batch_ms", "streams_10_batch_ms"),
        },
    )


# -- what there is to read --------------------------------------------------------------------------------------------


def _fill(broker: Broker, sets: Sequence[Streams]) -> None:
    with connect_bulk(broker, "bench-fill", timeout=CREATE_SECONDS) as connection:
        for streams in sets:
            _create(connection, streams)
            # One stream after the other: it is the same to those who read, and the server stores it much faster.
            events = [Message(f"{name}.order.created", PAYLOAD) for name in streams.names for _ in range(streams.each)]
            result = nats_bulk.publish(connection, events)
            result.raise_for_errors()
            if result.sequences != [*range(1, streams.each + 1)] * streams.count:
                raise RuntimeError("expected every event to be stored once, in order")


def _create(connection: Connection, streams: Streams) -> None:
    questions = [
        (
            f"$JS.API.STREAM.CREATE.{name}",
            json.dumps({"name": name, "subjects": [f"{name}.>"], "allow_direct": True}).encode(),
        )
        for name in streams.names
    ]
    for answer in connection.request_many(questions):
        if error := json.loads(answer).get("error"):
            raise RuntimeError(f"expected a stream to be made, got: {error}")


# -- those who read ---------------------------------------------------------------------------------------------------


class _Spark:
    """One session for all queries."""

    def __init__(self, platform: EmbeddedPlatform, folder: Path) -> None:
        assert platform.nats is not None
        self._session = local_session("bench", folder / "spark", config={"spark.log.level": "ERROR"})
        self._access = {
            "nats.url": platform.broker.url,
            "nats.creds": str(platform.nats.credentials_file("platform")),
        }
        self._checkpoints = folder / "checkpoints"
        self._queries = 0

    def stop(self) -> None:
        self._session.stop()

    def read(self, streams: Streams) -> Steady:
        """Read all of them, from the beginning, in a new query."""
        self._queries += 1
        events = (
            self._session.readStream.format("nats")
            .options(**self._access)
            .options(streams=f"{streams.prefix}_*", maxOffsetsPerTrigger=streams.batch)
            .load()
        )
        query = (
            events.writeStream.format("noop")
            .option("checkpointLocation", str(self._checkpoints / str(self._queries)))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        return _steady(query.recentProgress, streams)


def _steady(batches: Sequence[Any], streams: Streams) -> Steady:
    """From the progress that Spark reports of each batch."""
    rows = [batch["numInputRows"] for batch in batches]
    if rows != [streams.batch] * streams.batches:
        raise RuntimeError(f"expected {streams.batches} batches of {streams.batch} events, got {rows}")
    last = json.loads(batches[-1]["sources"][0]["endOffset"])
    behind = [name for name in streams.names if last.get(name) != streams.each + 1]
    if behind:
        raise RuntimeError(f"expected every stream to be read to its end, but not so {', '.join(behind[:10])}")
    return Steady(
        batch_seconds=(_ended(batches[-1]) - _ended(batches[0])) / (len(batches) - 1),
        latest_offset_ms=median(batch["durationMs"]["latestOffset"] for batch in batches[1:]),
        tasks=1 + len(last.get(".tasks", ())),
    )


def _ended(batch: Any) -> float:
    started = datetime.fromisoformat(batch["timestamp"]).timestamp()
    return started + float(batch["durationMs"]["triggerExecution"]) / 1000


def _read_by_wire(broker: Broker, streams: Streams) -> float:
    with connect_bulk(broker, "bench-wire") as connection:
        started = time.perf_counter()
        read = sum(
            len(batch) for name in streams.names for batch in nats_bulk.read_range(connection, name, 1, streams.each)
        )
        seconds = time.perf_counter() - started
    if read != streams.events:
        raise RuntimeError(f"expected to read {streams.events} events, got {read}")
    return streams.events / seconds


async def _read_by_client(broker: Broker, streams: Streams, each: int) -> float:
    async with connect(broker, "bench-client") as client:
        jetstream = client.jetstream()
        consumers = [await jetstream.pull_subscribe("", "bench", name) for name in streams.names]
        started = time.perf_counter()
        read = await asyncio.gather(*(_pull(consumer, each) for consumer in consumers))
        await client.flush()
        seconds = time.perf_counter() - started
        for name in streams.names:
            await jetstream.delete_consumer(name, "bench")
    expected = list(range(1, each + 1))
    if any([message.metadata.sequence.stream for message in messages] != expected for messages in read):
        raise RuntimeError("expected the client to read every event once")
    return streams.count * each / seconds


async def _pull(consumer: JetStreamContext.PullSubscription, count: int) -> list[Msg]:
    messages: list[Msg] = []
    while len(messages) < count:
        fetched = await consumer.fetch(min(AT_ONCE, count - len(messages)))
        for message in fetched:
            await message.ack()
        messages += fetched
    return messages
