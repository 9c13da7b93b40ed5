"""nats_bulk against the official client, on the embedded server, with 250-byte events.

Publish: every message has an id and is acknowledged. Read: all of each stream, once. The events are spread over eight
tenants' streams, as a relay would. One stream alone is measured beside that: there the server's work on that stream is
what limits us, and the ratio is lower. The rounds alternate, on fresh streams; a figure is the median of its rounds.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from statistics import median
from typing import Final

from nats.js import JetStreamContext
from nats.js.api import StreamConfig

import nats_bulk
from nats_bulk import Message
from tenantry.bench import Report, Say
from tenantry.config import Settings
from tenantry.embedded.platform import use_platform
from tenantry.nats.connections import Broker, connect, connect_bulk

TENANTS: Final = 8
PAYLOAD: Final = b"x" * 250
AT_ONCE: Final = 500


def run(*, quick: bool, say: Say) -> Report:
    rounds, bulk_count, client_count = (5, 120_000, 16_000) if quick else (9, 400_000, 40_000)
    with tempfile.TemporaryDirectory() as folder:
        return asyncio.run(_run(Settings(data=Path(folder)), rounds, bulk_count, client_count, say))


async def _run(settings: Settings, rounds: int, bulk_count: int, client_count: int, say: Say) -> Report:
    rates: defaultdict[str, list[float]] = defaultdict(list)
    async with use_platform(settings) as platform, connect(platform.broker, "bench") as control:
        streams = control.jetstream()
        for number in range(1, rounds + 1):
            say(f"round {number} of {rounds}")
            for spread, tenants in (("", TENANTS), ("_one_stream", 1)):
                await _fresh_streams(streams, tenants)
                publish, read = await _measure_client(platform.broker, client_count, tenants)
                rates[f"publish_client{spread}"].append(publish)
                rates[f"read_client{spread}"].append(read)
                await _fresh_streams(streams, tenants)
                publish, read = _measure_bulk(platform.broker, bulk_count, tenants)
                rates[f"publish_bulk{spread}"].append(publish)
                rates[f"read_bulk{spread}"].append(read)
    figures = {f"{name}_per_second": median(values) for name, values in rates.items()}
    ratios = {
        f"{what}{spread}_vs_client": figures[f"{what}_bulk{spread}_per_second"]
        / figures[f"{what}_client{spread}_per_second"]
        for spread in ("", "_one_stream")
        for what in ("publish", "read")
    }
    return Report(bench="wire", figures=figures, ratios=ratios)


async def _fresh_streams(streams: JetStreamContext, tenants: int) -> None:
    for info in await streams.streams_info():
        await streams.delete_stream(info.config.name or "")
    for tenant in range(tenants):
        await streams.add_stream(
            StreamConfig(name=f"TENANT_{tenant}", subjects=[f"bench.tenants.{tenant}.>"], allow_direct=True)
        )


def _subject(number: int, tenants: int) -> str:
    return f"bench.tenants.{number % tenants}.events.order.created"


async def _measure_client(broker: Broker, count: int, tenants: int) -> tuple[float, float]:
    async with connect(broker, "bench-client") as client:
        streams = client.jetstream()
        messages = [(_subject(number, tenants), {"Nats-Msg-Id": f"client-{number}"}) for number in range(count)]
        started = time.perf_counter()
        for start in range(0, count, AT_ONCE):
            await asyncio.gather(
                *(
                    streams.publish(subject, PAYLOAD, headers=headers)
                    for subject, headers in messages[start : start + AT_ONCE]
                )
            )
        published = time.perf_counter() - started
        started = time.perf_counter()
        for tenant in range(tenants):
            subscription = await streams.pull_subscribe(f"bench.tenants.{tenant}.>", "reader", f"TENANT_{tenant}")
            left = count // tenants
            while left:
                fetched = await subscription.fetch(min(AT_ONCE, left))
                for message in fetched:
                    await message.ack()
                left -= len(fetched)
        await client.flush()
        return count / published, count / (time.perf_counter() - started)


def _measure_bulk(broker: Broker, count: int, tenants: int) -> tuple[float, float]:
    with connect_bulk(broker, "bench-bulk") as connection:
        messages = [Message(_subject(number, tenants), PAYLOAD, f"bulk-{number}") for number in range(count)]
        started = time.perf_counter()
        result = nats_bulk.publish(connection, messages)
        published = time.perf_counter() - started
        result.raise_for_errors()
        if result.duplicates or sorted(result.sequences[::tenants]) != list(range(1, count // tenants + 1)):
            raise RuntimeError("expected every message to be stored once, in order")
        started = time.perf_counter()
        read = sum(
            len(batch)
            for tenant in range(tenants)
            for batch in nats_bulk.read_range(connection, f"TENANT_{tenant}", 1, count // tenants)
        )
        seconds = time.perf_counter() - started
        if read != count:
            raise RuntimeError(f"expected to read {count} messages, got {read}")
        return count / published, count / seconds
