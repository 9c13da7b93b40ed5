"""Ingest over HTTP beside an ordinary endpoint of FastAPI and nats-py: events one by one, and in batches of 100.

Both are processes of their own with one event loop and the same HTTP server; the load is the same, spread over eight
tenants, with 300-byte events that have ids and are acknowledged. Tenantry also authenticates, looks up the tenant,
keeps its limits and names the event as its own. Rounds alternate, a figure is the median of its rounds, and in the end
every event must be in its stream.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from statistics import median, quantiles
from typing import Any, Final

from nats.js.api import StreamConfig

from tenantry.bench import Report, Say
from tenantry.bench.http_load import send_all
from tenantry.bench.own_platform import environment, own_settings
from tenantry.config import Settings
from tenantry.embedded.platform import EmbeddedPlatform, use_platform
from tenantry.embedded.ports import HOST, free_port
from tenantry.nats.connections import connect
from tenantry.postgres.migrations import ensure_schema
from tenantry.tenants.assembly import open_administration
from tenantry.tenants.spec import TenantSpec

ACTOR: Final = "bench"
TENANTS: Final = 8
IN_BATCH: Final = 100
CONNECTIONS: Final = 48
BATCH_CONNECTIONS: Final = 16
START_SECONDS: Final = 30
UNLIMITED_RATE: Final = 100_000_000

_SERVE: Final = "from tenantry.cli import main; main()"


def run(*, quick: bool, say: Say) -> Report:
    rounds, singles, batches = (5, 6_000, 240) if quick else (9, 20_000, 1_000)
    with own_settings() as settings:
        return asyncio.run(_run(settings, rounds, singles, batches, say))


async def _run(settings: Settings, rounds: int, singles: int, batches: int, say: Say) -> Report:
    rates: defaultdict[str, list[float]] = defaultdict(list)
    latencies: defaultdict[str, list[float]] = defaultdict(list)
    async with use_platform(settings) as platform:
        await ensure_schema(platform.database_url, may_migrate=True)
        keys = await _make_tenants(platform)
        await _make_plain_streams(platform)
        ours, plain = free_port(), free_port()
        async with (
            _process(platform, ours, "-c", _SERVE, "serve", "api", "--api-port", str(ours), "--log-level", "warning"),
            _process(platform, plain, "-m", "tenantry.bench.plain_ingest", str(plain)),
        ):
            for number in range(rounds + 1):
                say(f"round {number} of {rounds}" if number else "warming up")
                measures = [
                    ("single", "plain", plain, _plain_singles(number, singles // 2), CONNECTIONS, 1),
                    ("single", "tenantry", ours, _singles(number, singles, keys), CONNECTIONS, 1),
                    ("batch", "plain", plain, _plain_batches(number, batches // 4), BATCH_CONNECTIONS, IN_BATCH),
                    ("batch", "tenantry", ours, _batches(number, batches, keys), BATCH_CONNECTIONS, IN_BATCH),
                ]
                for kind, who, port, requests, connections, events in measures:
                    measured = await send_all(HOST, port, requests, connections)
                    # The first round is for caches, connections and the processor to get going.
                    if number:
                        rates[f"{kind}_{who}"].append(len(requests) * events / measured.seconds)
                        latencies[f"{kind}_{who}"] += measured.latencies
        say("checking that every event is there")
        sent = rounds + 1
        await _require_stored(platform, "TENANT_", sent * (singles + batches * IN_BATCH))
        await _require_stored(platform, "PLAIN_", sent * (singles // 2 + batches // 4 * IN_BATCH))
    return _report(rates, latencies)


def _report(rates: dict[str, list[float]], latencies: dict[str, list[float]]) -> Report:
    figures = {f"{name}_events_per_second": median(values) for name, values in rates.items()}
    for name, values in latencies.items():
        figures[f"{name}_median_ms"] = median(values) * 1000
        figures[f"{name}_p99_ms"] = quantiles(values, n=100)[98] * 1000
    ratios = {
        f"{kind}_vs_plain": median(
            ours / plain for ours, plain in zip(rates[f"{kind}_tenantry"], rates[f"{kind}_plain"], strict=True)
        )
        for kind in ("single", "batch")
    }
    return Report(bench="ingest", figures=figures, ratios=ratios)


async def _make_tenants(platform: EmbeddedPlatform) -> list[str]:
    """Tenants whose limits nothing here reaches; a key for each."""
    limits = {"publish_rate": UNLIMITED_RATE, "publish_burst": UNLIMITED_RATE}
    keys = []
    async with open_administration(
        platform.settings,
        broker=platform.broker,
        authority=platform.authority,
        database_url=platform.database_url,
        secret=platform.secret,
    ) as administration:
        for number in range(TENANTS):
            await administration.put(TenantSpec(id=f"t{number}", overrides=limits), ACTOR)
            _, key = await administration.keys.create(ACTOR, name="bench", scopes=["events:write"], tenant=f"t{number}")
            keys.append(key)
    return keys


async def _make_plain_streams(platform: EmbeddedPlatform) -> None:
    async with connect(platform.broker, "bench") as client:
        for number in range(TENANTS):
            await client.jetstream().add_stream(
                StreamConfig(name=f"PLAIN_{number}", subjects=[f"plain.{number}.>"], allow_direct=True)
            )


@asynccontextmanager
async def _process(platform: EmbeddedPlatform, port: int, *arguments: str) -> AsyncIterator[None]:
    """A server in a process of its own, once it answers."""
    process = await asyncio.create_subprocess_exec(sys.executable, *arguments, env=environment(platform))
    try:
        async with asyncio.timeout(START_SECONDS):
            while not await _answers(port):
                if process.returncode is not None:
                    raise RuntimeError(f"a server for the benchmark ended with {process.returncode}")
                await asyncio.sleep(0.05)
        yield
    finally:
        if process.returncode is None:
            process.terminate()
            await process.wait()


async def _answers(port: int) -> bool:
    try:
        _, writer = await asyncio.open_connection(HOST, port)
    except OSError:
        return False
    writer.close()
    return True


def _event(round: int, number: int, kind: str) -> dict[str, Any]:
    return {
        "specversion": "1.0",
        "id": f"{kind}-{round}-{number}",
        "source": "/bench",
        "type": "order.created",
        "time": "2026-01-01T00:00:00Z",
        "data": {"order": number, "lines": [{"sku": "x" * 40, "price": 12.5}] * 2},
    }


def _request(path: str, content_type: str, document: Any, key: str = "") -> bytes:
    body = json.dumps(document, separators=(",", ":")).encode()
    access = f"Authorization: Bearer {key}\r\n" if key else ""
    head = f"POST {path} HTTP/1.1\r\nHost: bench\r\nContent-Type: {content_type}\r\n{access}"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


def _singles(round: int, count: int, keys: list[str]) -> list[bytes]:
    return [
        _request("/v1/events", "application/cloudevents+json", _event(round, number, "single"), keys[number % TENANTS])
        for number in range(count)
    ]


def _batches(round: int, count: int, keys: list[str]) -> list[bytes]:
    return [
        _request(
            "/v1/events",
            "application/cloudevents-batch+json",
            [_event(round, number * IN_BATCH + each, "batch") for each in range(IN_BATCH)],
            keys[number % TENANTS],
        )
        for number in range(count)
    ]


def _plain_singles(round: int, count: int) -> list[bytes]:
    return [
        _request(f"/streams/{number % TENANTS}/events", "application/json", _event(round, number, "single"))
        for number in range(count)
    ]


def _plain_batches(round: int, count: int) -> list[bytes]:
    return [
        _request(
            f"/streams/{number % TENANTS}/batches",
            "application/json",
            [_event(round, number * IN_BATCH + each, "batch") for each in range(IN_BATCH)],
        )
        for number in range(count)
    ]


async def _require_stored(platform: EmbeddedPlatform, prefix: str, expected: int) -> None:
    async with connect(platform.broker, "bench") as client:
        infos = await client.jetstream().streams_info()
    found = sum(info.state.messages for info in infos if (info.config.name or "").startswith(prefix))
    if found != expected:
        raise RuntimeError(f"expected {expected:,} events in the streams of {prefix}, got: {found:,}")
