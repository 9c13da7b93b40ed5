"""Workers beside FastStream, and what a slow tenant costs the others.

Fifty tenants with a stream each, one process that handles, a handler that does nothing. `parallel` and `fifo` are
events a second out of a backlog, one call of the handler for each. `faststream` is that of FastStream's pull
subscribers, also with a call for each, and `faststream_lists` with a call for all that were fetched together. They are
other durable consumers on the same streams, so all handle the very same events. Rounds alternate, a figure is the
median of its rounds, and each consumer must have handed out every event once, and had it acknowledged.

The delay of an event is the time from right before it is published to its handler, while a process beside it publishes
1,000 events a second. `slow_tenant_p99` is what it is for 49 tenants while the handler takes two seconds for each event
of the fiftieth, which has a thousand waiting and goes on getting its share, beside what it is for the same 49 without:
the worse of `parallel`, where that one would like to have every slot of the worker, and `fifo`.
"""

from __future__ import annotations

import asyncio
import sys
import time
from asyncio.subprocess import PIPE, Process
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.util import find_spec
from statistics import median, quantiles
from typing import Any, Final, Literal
from uuid import uuid4

import msgspec

import nats_bulk
from nats_bulk import Message
from tenantry.bench import Report, Say
from tenantry.bench.draining import Drained
from tenantry.bench.own_platform import environment, own_platform, own_settings
from tenantry.bench.pacing import publish_paced, publish_slow
from tenantry.bench.worker_process import READY, Delays
from tenantry.config import Settings
from tenantry.embedded.platform import EmbeddedPlatform
from tenantry.errors import TenantryError
from tenantry.nats.connections import connect_bulk
from tenantry.nats.jetstream import JetStream
from tenantry.tenants.administration import Administration
from tenantry.tenants.lanes import Lane
from tenantry.tenants.spec import TenantSpec

ACTOR: Final = "bench"
TENANTS: Final = 50
RATE: Final = 1000.0
SLOW_BACKLOG: Final = 1000
SLOW_MARGIN_SECONDS: Final = 0.5
SLOW_AT_LEAST_MS: Final = 500.0
WARM_UP_SECONDS: Final = 0.5
PATIENCE: Final = 120.0
NO_LIMIT: Final = {"publish_rate": 100_000_000, "publish_burst": 100_000_000, "storage": -1}

Order = Literal["fifo", "parallel"]


def run(*, quick: bool, say: Say) -> Report:
    if find_spec("faststream") is None:
        raise TenantryError(
            "the benchmark of workers compares them with FastStream, which is not installed here: run `make install`, "
            "or pip install 'faststream[nats]'"
        )
    rounds, each, phases, seconds = (2, 600, 2, 1.2) if quick else (5, 4_000, 5, 6.0)
    with own_settings() as settings:
        return asyncio.run(_run(settings, rounds, each, phases, seconds, say))


async def _run(settings: Settings, rounds: int, each: int, phases: int, seconds: float, say: Say) -> Report:
    drained: defaultdict[str, list[Drained]] = defaultdict(list)
    async with own_platform(settings) as (platform, administration):
        say(f"making {TENANTS} tenants with {each:,} events each")
        bench = _Bench(platform, administration, await _make_tenants(administration))
        await asyncio.to_thread(bench.publish_backlog, each)
        for number in range(1, rounds + 1):
            say(f"round {number} of {rounds}")
            drained["faststream"].append(await bench.drain_faststream(f"faststream-{number}", "one", each))
            drained["parallel"].append(await bench.drain(f"parallel-{number}", "parallel", each))
            drained["faststream_lists"].append(await bench.drain_faststream(f"lists-{number}", "lists", each))
            drained["fifo"].append(await bench.drain(f"fifo-{number}", "fifo", each))
        paced = {}
        for order in ("parallel", "fifo"):
            say(f"{RATE:,.0f} events a second, {order}, without and with a slow tenant")
            paced[order] = await bench.pace(f"paced-{order}", order, phases, seconds)
    return _report(drained, paced, bench.slow.tenant)


def _report(drained: dict[str, list[Drained]], paced: dict[str, _Pace], slow: str) -> Report:
    rates = {name: [each.rate for each in rounds] for name, rounds in drained.items()}
    figures: dict[str, float] = {}
    for name, rounds in drained.items():
        figures[f"{name}_events_per_second"] = median(rates[name])
        figures[f"{name}_events"] = median(each.events for each in rounds)
        figures[f"{name}_seconds"] = median(each.seconds for each in rounds)
    ratios = {
        "vs_faststream": _ratio(rates["parallel"], rates["faststream"]),
        "vs_faststream_lists": _ratio(rates["parallel"], rates["faststream_lists"]),
        "fifo_vs_parallel": _ratio(rates["fifo"], rates["parallel"]),
    }
    for order, pace in paced.items():
        figures |= {f"{order}_{name}": value for name, value in _delays(pace, slow).items()}
        ratios[f"slow_tenant_p99_{order}"] = _ratio(*_others_p99(pace, slow))
    ratios["slow_tenant_p99"] = max(ratios[f"slow_tenant_p99_{order}"] for order in paced)
    return Report(bench="workers", figures=figures, ratios=ratios)


def _delays(pace: _Pace, slow: str) -> dict[str, float]:
    calm = [delay for phase, _ in pace.phases for _, delay in pace.delays[phase]]
    beside, without = _others_p99(pace, slow)
    return {
        "p50_ms": _cut(calm, 50),
        "p99_ms": _cut(calm, 99),
        "others_p99_ms": median(without),
        "others_beside_slow_p99_ms": median(beside),
        "slow_tenant_p50_ms": _slowness(pace, slow),
        "paced_events": sum(len(delays) for delays in pace.delays.values()),
        "paced_events_per_second": pace.rate,
    }


def _others_p99(pace: _Pace, slow: str) -> tuple[list[float], list[float]]:
    """Of all but one tenant, phase by phase: beside it while it is slow, and while it is not."""
    p99 = {phase: _cut([delay for tenant, delay in its if tenant != slow], 99) for phase, its in pace.delays.items()}
    return [p99[beside] for _, beside in pace.phases], [p99[calm] for calm, _ in pace.phases]


def _ratio(ours: list[float], theirs: list[float]) -> float:
    """Of the same round, for the machine may be another one in the next."""
    return median(mine / other for mine, other in zip(ours, theirs, strict=True))


def _slowness(pace: _Pace, slow: str) -> float:
    """How late the slow tenant's own events came: if it was not slow, nothing has been measured."""
    late = median(delay for _, beside in pace.phases for tenant, delay in pace.delays[beside] if tenant == slow)
    if late < SLOW_AT_LEAST_MS:
        raise RuntimeError(f"expected the slow tenant to be slow, and half of its events came within {late:.0f} ms")
    return late


def _cut(values: list[float], percent: int) -> float:
    return quantiles(values, n=100)[percent - 1]


class _Pace(msgspec.Struct):
    """What came of publishing at a steady rate."""

    phases: list[tuple[str, str]]
    """Of each round, the names of the phase without and of that with a slow tenant."""
    rate: float
    """At which it was really published, at the least."""
    delays: Delays


class _Bench:
    def __init__(self, platform: EmbeddedPlatform, administration: Administration, lanes: list[Lane]) -> None:
        self._platform = platform
        self._jetstream: JetStream = administration.backbone.platform
        self._lanes = lanes
        self.slow = lanes[0]

    def publish_backlog(self, each: int) -> None:
        messages = (
            Message(f"{lane.prefix}.order.created", _document(number), uuid4().hex)
            for number in range(each)
            for lane in self._lanes
        )
        with connect_bulk(self._lanes[0].broker, "bench") as connection:
            nats_bulk.publish(connection, messages).raise_for_errors()

    async def drain(self, service: str, order: Order, each: int) -> Drained:
        arguments = ("drain", service, order, str(TENANTS * each))
        async with self._process("tenantry.bench.worker_process", *arguments) as process:
            said, _ = await process.communicate()
        return await self._checked(said, service, each)

    async def drain_faststream(self, service: str, kind: str, each: int) -> Drained:
        streams = "".join(f"{lane.stream} {lane.subjects}\n" for lane in self._lanes)
        arguments = (kind, service, str(TENANTS * each))
        async with self._process("tenantry.bench.faststream_process", *arguments) as process:
            said, _ = await process.communicate(streams.encode())
        return await self._checked(said, service, each)

    async def _checked(self, said: bytes, service: str, each: int) -> Drained:
        """With its consumers gone, so that the next has the streams for itself."""
        for lane in self._lanes:
            state = await self._jetstream.consumer(lane.stream, service)
            assert state is not None
            handed, acknowledged = state["delivered"]["consumer_seq"], state["ack_floor"]["consumer_seq"]
            if (handed, acknowledged) != (each, each):
                raise RuntimeError(
                    f"expected {service} to have {each} events of {lane.tenant} once and to acknowledge them, got: "
                    f"{handed} and {acknowledged}"
                )
            await self._jetstream.delete_consumer(lane.stream, service)
        return msgspec.json.decode(said, type=Drained)

    async def pace(self, service: str, order: Order, rounds: int, seconds: float) -> _Pace:
        """Phases without and with a slow tenant, in turn."""
        phases = [(f"calm-{number}", f"slow-{number}") for number in range(rounds)]
        arguments = ("watch", service, order, str(TENANTS))
        async with self._process("tenantry.bench.worker_process", *arguments) as process:
            assert process.stdout is not None
            if (line := (await process.stdout.readline()).decode().strip()) != READY:
                raise RuntimeError(f"expected the worker to be ready, got: {line!r}")
            await self._publish("warm-up", WARM_UP_SECONDS)
            reached = []
            for calm, beside in phases:
                reached.append(await self._publish(calm, seconds))
                await self._until_handled(service)
                reached.append(await self._publish(beside, seconds, with_slow=True))
                await self._until_handled(service)
            # Its input ends, and so does it.
            said, _ = await process.communicate(b"")
        return _Pace(phases, min(reached), msgspec.json.decode(said, type=Delays))

    async def _publish(self, phase: str, seconds: float, *, with_slow: bool = False) -> float:
        def publish() -> float:
            with connect_bulk(self.slow.broker, "bench") as connection:
                if with_slow:
                    # It is slow until the phase is over for sure: then all that waits goes through at once.
                    until = time.time() + seconds + SLOW_MARGIN_SECONDS
                    publish_slow(connection, self.slow, phase, SLOW_BACKLOG, until)
                return publish_paced(connection, self._lanes, phase, RATE, seconds)

        return await asyncio.to_thread(publish)

    async def _until_handled(self, service: str) -> None:
        async with asyncio.timeout(PATIENCE):
            for lane in self._lanes:
                while True:
                    state = await self._jetstream.consumer(lane.stream, service)
                    if state and not state["num_pending"] and not state["num_ack_pending"]:
                        break
                    await asyncio.sleep(0.05)

    @asynccontextmanager
    async def _process(self, module: str, *arguments: str) -> AsyncIterator[Process]:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", module, *arguments, env=environment(self._platform), stdin=PIPE, stdout=PIPE
        )
        try:
            yield process
            if process.returncode:
                raise RuntimeError(f"{module} {' '.join(arguments)} ended with {process.returncode}")
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()


async def _make_tenants(administration: Administration) -> list[Lane]:
    names = [f"bench-{number}" for number in range(TENANTS)]
    await asyncio.gather(
        *(administration.put(TenantSpec(id=name, tier="stream", overrides=NO_LIMIT), ACTOR) for name in names)
    )
    return [await administration.lanes.resolve(name, "events") for name in names]


def _document(number: int) -> bytes:
    event: dict[str, Any] = {
        "specversion": "1.0",
        "id": uuid4().hex,
        "source": "/bench",
        "type": "order.created",
        "time": "2026-01-01T00:00:00Z",
        "data": {"order": number, "lines": [{"sku": "x" * 40, "price": 12.5}] * 2},
    }
    return msgspec.json.encode(event)
