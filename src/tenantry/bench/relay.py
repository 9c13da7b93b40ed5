"""The relay beside the common design, and beside what the database alone allows.

`row_flags` is what most outboxes do: rows claimed with SKIP LOCKED, published one by one with the official client (as
many at once as a batch has), and flagged. `database` is this relay with the same reads and cursor moves, which then
publishes nothing. Eight tenants, 300-byte events, all emitted beforehand; each figure is the median of its rounds, and
each ratio the median of the rounds' ratios.
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from statistics import median
from typing import Any, Final

from tenantry.bench import Report, Say
from tenantry.bench.own_platform import own_platform, own_settings
from tenantry.config import Settings
from tenantry.embedded.platform import EmbeddedPlatform
from tenantry.nats.connections import connect
from tenantry.outbox.carrier import Carrier, Flight
from tenantry.outbox.relay import Relay
from tenantry.postgres.pool import Pool
from tenantry.postgres.queries import SqlFolder
from tenantry.tenants.administration import Administration
from tenantry.tenants.roster import Roster
from tenantry.tenants.spec import TenantSpec

ACTOR: Final = "bench"
TENANTS: Final = 8
CHUNK: Final = 20_000
ROWS_AT_ONCE: Final = 500
UNLIMITED_RATE: Final = 100_000_000

_sql = SqlFolder("tenantry.bench")


class Unpublished(Carrier):
    """Takes everything and sends nothing."""

    is_ready = True
    inbox = "_INBOX.0123456789abcdef012345."
    max_payload = 1 << 20
    generation = 1
    _next = 0

    def fileno(self) -> None:
        return None

    def reserve(self, count: int) -> int:
        self._next += count
        return self._next - count

    def _send(self, frames: bytes, flight: Flight) -> Flight:  # noqa: ARG002
        flight.answered = flight.count
        return flight


def run(*, quick: bool, say: Say) -> Report:
    rounds, count, flagged = (5, 160_000, 16_000) if quick else (5, 800_000, 60_000)
    with own_settings() as settings:
        return asyncio.run(_run(settings, rounds, count, flagged, say))


async def _run(settings: Settings, rounds: int, count: int, flagged: int, say: Say) -> Report:
    rates: defaultdict[str, list[float]] = defaultdict(list)
    async with own_platform(settings) as (platform, administration):
        roster = await _make_tenants(administration)
        for number in range(1, rounds + 1):
            say(f"round {number} of {rounds}")
            rates["row_flags"].append(await _measure_row_flags(administration.pool, platform, flagged))
            after = await _fill(administration.pool, count)
            rates["database"].append(await _measure(administration.pool, platform, roster, Unpublished, count))
            await _reset(administration.pool, after)
            await _purge(administration)
            rates["relay"].append(await _measure(administration.pool, platform, roster, Carrier, count))
            await _require_stored(administration, count)
    return Report(
        bench="relay",
        figures={f"{name}_events_per_second": median(values) for name, values in rates.items()},
        ratios={
            "vs_row_flags": _ratio(rates["relay"], rates["row_flags"]),
            "of_database_limit": _ratio(rates["relay"], rates["database"]),
        },
    )


def _ratio(ours: list[float], theirs: list[float]) -> float:
    """Of the same round, for the machine may be another one in the next."""
    return median(mine / other for mine, other in zip(ours, theirs, strict=True))


async def _make_tenants(administration: Administration) -> Roster:
    limits = {"publish_rate": UNLIMITED_RATE, "publish_burst": UNLIMITED_RATE, "storage": -1}
    for number in range(TENANTS):
        await administration.put(TenantSpec(id=f"bench-{number}", overrides=limits), ACTOR)
    roster = Roster(administration.registry, administration.lanes)
    await roster.refresh()
    return roster


async def _fill(pool: Pool, count: int) -> int:
    """Emit so many events; the last ticket before them."""
    async with pool.connection() as connection:
        before = await _sql.fetch_one(connection, "last_ticket")
        for first in range(0, count, CHUNK):
            last = min(first + CHUNK, count) - 1
            await _sql.execute(connection, "fill_outbox", {"tenants": TENANTS, "first": first, "last": last})
        await connection.execute("vacuum analyze tenantry.outbox")
    assert before is not None
    return int(before["ticket"])


async def _measure(pool: Pool, platform: EmbeddedPlatform, roster: Roster, carrier: type[Carrier], count: int) -> float:
    relay = Relay(
        platform.database_url, roster, attempts=1, is_replicated=lambda _: False, refresh=_nothing, carrier=carrier
    )
    started = time.perf_counter()
    running = asyncio.ensure_future(asyncio.to_thread(relay.run))
    async with pool.connection() as connection:
        while (await _pending(connection)) and not running.done():
            await asyncio.sleep(0.01)
    seconds = time.perf_counter() - started
    relay.stop()
    await running
    return count / seconds


async def _pending(connection: Any) -> int:
    row = await _sql.fetch_one(connection, "pending", {"tenant": ""})
    assert row is not None
    return int(row["lanes"])


async def _reset(pool: Pool, after: int) -> None:
    async with pool.connection() as connection:
        await _sql.execute(connection, "reset_cursors", {"after": after})


async def _purge(administration: Administration) -> None:
    for number in range(TENANTS):
        lane = await administration.lanes.resolve(f"bench-{number}", "events")
        await administration.backbone.platform.purge(lane.stream, lane.subjects)


async def _require_stored(administration: Administration, count: int) -> None:
    stored = 0
    for number in range(TENANTS):
        lane = await administration.lanes.resolve(f"bench-{number}", "events")
        stream = await administration.backbone.platform.stream(lane.stream)
        assert stream is not None
        stored += stream["state"]["messages"]
    if stored != count:
        raise RuntimeError(f"expected {count} events in the streams, got {stored}")


async def _measure_row_flags(pool: Pool, platform: EmbeddedPlatform, count: int) -> float:
    async with pool.connection() as connection, connect(platform.broker, "bench") as client:
        await _sql.execute(connection, "make_row_flags")
        await _sql.execute(connection, "fill_row_flags", {"count": count, "tenants": TENANTS})
        await connection.execute("vacuum analyze public.row_flags")
        streams = client.jetstream()
        started = time.perf_counter()
        while True:
            async with connection.transaction():
                rows = await _sql.fetch_all(connection, "claim_rows", {"limit": ROWS_AT_ONCE})
                if not rows:
                    return count / (time.perf_counter() - started)
                await asyncio.gather(
                    *(
                        streams.publish(
                            row["subject"], row["payload"].encode(), headers={"Nats-Msg-Id": row["event_id"]}
                        )
                        for row in rows
                    )
                )
                await _sql.execute(connection, "flag_rows", {"ids": [row["id"] for row in rows]})


def _nothing() -> None:
    """Tenants stay as they are."""
