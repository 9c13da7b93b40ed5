"""nats_bulk against the official client, on the embedded server, with 250-byte events of eight tenants.

Publish: every message has an id and is acknowledged. Read: all of each stream, once. The rounds alternate between the
two, each on fresh streams, and a figure is the best of its rounds: what else the machine does only ever slows a round.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from pathlib import Path
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
    rounds, bulk_count, client_count = (8, 120_000, 16_000) if quick else (12, 400_000, 40_000)
    with tempfile.TemporaryDirectory() as folder:
        return asyncio.run(_run(Settings(data=Path(folder)), rounds, bulk_count, client_count, say))


async def _run(settings: Settings, rounds: int, bulk_count: int, client_count: int, say: Say) -> Report:
    rates: dict[str, list[float]] = {"publish_client": [], "publish_bulk": [], "read_client": [], "read_bulk": []}
    async with use_platform(settings) as platform, connect(platform.broker, "bench") as control:
        streams = control.jetstream()
        for number in range(1, rounds + 1):
            say(f"round {number} of {rounds}")
            await _fresh_streams(streams)
            publish, read = await _measure_client(platform.broker, client_count)
            rates["publish_client"].append(publish)
            rates["read_client"].append(read)
            await _fresh_streams(streams)
            publish, read = _measure_bulk(platform.broker, bulk_count)
            rates["publish_bulk"].append(publish)
            rates["read_bulk"].append(read)
    figures = {f"{name}_per_second": max(values) for name, values in rates.items()}
    return Report(
        bench="wire",
        figures=figures,
        ratios={
            "publish_vs_client": figures["publish_bulk_per_second"] / figures["publish_client_per_second"],
            "read_vs_client": figures["read_bulk_per_second"] / figures["read_client_per_second"],
        },
    )


async def _fresh_streams(streams: JetStreamContext) -> None:
    for tenant in range(TENANTS):
        if await _exists(streams, f"TENANT_{tenant}"):
            await streams.delete_stream(f"TENANT_{tenant}")
        await streams.add_stream(
            StreamConfig(name=f"TENANT_{tenant}", subjects=[f"bench.tenants.{tenant}.>"], allow_direct=True)
        )


async def _exists(streams: JetStreamContext, name: str) -> bool:
    return any(info.config.name == name for info in await streams.streams_info())


def _subject(number: int) -> str:
    return f"bench.tenants.{number % TENANTS}.events.order.created"


async def _measure_client(broker: Broker, count: int) -> tuple[float, float]:
    async with connect(broker, "bench-client") as client:
        streams = client.jetstream()
        messages = [(_subject(number), {"Nats-Msg-Id": f"client-{number}"}) for number in range(count)]
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
        for tenant in range(TENANTS):
            subscription = await streams.pull_subscribe(f"bench.tenants.{tenant}.>", "reader", f"TENANT_{tenant}")
            left = count // TENANTS
            while left:
                fetched = await subscription.fetch(min(AT_ONCE, left))
                for message in fetched:
                    await message.ack()
                left -= len(fetched)
        await client.flush()
        return count / published, count / (time.perf_counter() - started)


def _measure_bulk(broker: Broker, count: int) -> tuple[float, float]:
    with connect_bulk(broker, "bench-bulk") as connection:
        messages = [Message(_subject(number), PAYLOAD, f"bulk-{number}") for number in range(count)]
        started = time.perf_counter()
        result = nats_bulk.publish(connection, messages)
        published = time.perf_counter() - started
        result.raise_for_errors()
        if result.duplicates or sorted(result.sequences[::TENANTS]) != list(range(1, count // TENANTS + 1)):
            raise RuntimeError("expected every message to be stored once, in order")
        started = time.perf_counter()
        read = sum(
            len(batch)
            for tenant in range(TENANTS)
            for batch in nats_bulk.read_range(connection, f"TENANT_{tenant}", 1, count // TENANTS)
        )
        seconds = time.perf_counter() - started
        if read != count:
            raise RuntimeError(f"expected to read {count} messages, got {read}")
        return count / published, count / seconds
