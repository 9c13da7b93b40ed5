"""A worker with a handler that does nothing, in a process of its own, for the benchmark of workers.

    python -m tenantry.bench.worker_process drain SERVICE ORDER EVENTS
    python -m tenantry.bench.worker_process watch SERVICE ORDER TENANTS

`drain` handles so many events and says how long it took. `watch` says when it is ready, notes how late each event
comes until its input ends, and says that.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, Final, Literal

import msgspec

from tenantry.application import Context, Event, Tenantry
from tenantry.bench.draining import Drain
from tenantry.config import load
from tenantry.embedded.platform import EmbeddedPlatform
from tenantry.observe.logs import log_signals
from tenantry.service import end
from tenantry.subscriptions.worker import Limits, Worker
from tenantry.tenants.assembly import open_administration
from tenantry.tenants.roster import Roster

READY: Final = "ready"
SLOW_SECONDS: Final = 2.0
LOOK_SECONDS: Final = 0.02

Order = Literal["fifo", "parallel"]
Handle = Callable[[Event[Any], Context], Coroutine[Any, Any, None]]


class Paced(msgspec.Struct):
    """The data of an event that says when it was sent."""

    phase: str
    sent: int
    """Nanoseconds since 1970, by the clock that the handler's process has, too."""
    slow_until: float = 0.0
    """Until then its handler is slow."""


Delays = dict[str, list[tuple[str, float]]]
"""By phase: whose event, and how many milliseconds after it was sent."""


async def drain(service: str, order: Order, events: int) -> None:
    counting = Drain(events)

    async def handle(_: Event[Any], __: Context) -> None:
        counting.count()

    async with _working(service, order, handle):
        _say(await counting.until_done())


async def watch(service: str, order: Order, tenants: int) -> None:
    delays: defaultdict[str, list[tuple[str, float]]] = defaultdict(list)

    async def handle(event: Event[Paced], _: Context) -> None:
        paced = event.data
        delays[paced.phase].append((event.tenant, (time.time_ns() - paced.sent) / 1e6))
        if (left := paced.slow_until - time.time()) > 0:
            # Then all that has piled up is gone soon, and the next phase is not disturbed.
            await asyncio.sleep(min(SLOW_SECONDS, left))

    async with _working(service, order, handle, data=Paced, start="now") as worker:
        while sum(holding.intake is not None for holding in worker.holdings.values()) < tenants:
            await asyncio.sleep(LOOK_SECONDS)
        print(READY, flush=True)
        await asyncio.to_thread(sys.stdin.read)
        _say(delays)


@asynccontextmanager
async def _working(service: str, order: Order, handle: Handle, **options: Any) -> AsyncIterator[Worker]:
    """As `tenantry serve worker` does it, with nothing else in the process."""
    app = Tenantry("bench")
    app.subscriber(service, order=order, **options)(handle)
    platform = EmbeddedPlatform(load({"log_level": "warning"}).settings)
    log_signals(platform.settings)
    if platform.uses_directory:
        raise RuntimeError("expected the environment to name the benchmark's servers: NATS_URL and DATABASE_URL")
    async with (
        open_administration(
            platform.settings,
            broker=platform.broker,
            authority=platform.authority,
            database_url=platform.database_url,
            secret=platform.secret,
        ) as administration,
    ):
        lanes = administration.lanes
        roster = Roster(administration.registry, lanes)
        worker = Worker(
            app.name,
            app.subscribers.values(),
            broker=platform.broker,
            roster=roster,
            lanes=lanes,
            pool=administration.pool,
            limits=Limits(drain_seconds=1.0),
        )
        await roster.start()
        await worker.start()
        running = [asyncio.ensure_future(roster.run()), asyncio.ensure_future(worker.run())]
        try:
            yield worker
        finally:
            await end(running)
            await worker.stop()


def _say(answer: object) -> None:
    print(msgspec.json.encode(answer).decode(), flush=True)


if __name__ == "__main__":
    what, service, order, count = sys.argv[1:]
    work = {"drain": drain, "watch": watch}[what]
    asyncio.run(work(service, order, int(count)))  # type: ignore[arg-type]
