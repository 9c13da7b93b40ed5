"""One lifecycle for everything that runs in the background.

A service starts, runs, and stops. `run_services` starts them in order, runs them side by side, and drains them in the
opposite order on the first SIGINT or SIGTERM, or when one of them ends. A second signal does not wait any longer.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Sequence
from typing import Any, Final, Protocol

from tenantry.errors import TenantryError
from tenantry.telemetry import signal as declare

SERVICE_STARTED = declare("service.started", "A service is ready.", "service", "seconds", "error", level="debug")
SERVICE_STOPPED = declare("service.stopped", "A service has drained.", "service", "seconds", "error", level="debug")
DRAIN_REQUESTED = declare("service.drain_requested", "A signal asked the process to end.", "signal")
DRAIN_FORCED = declare(
    "service.drain_forced", "A second signal ended the process without waiting.", "signal", level="warning"
)

STOP_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)


class Service(Protocol):
    """Background work with a name."""

    @property
    def name(self) -> str: ...

    async def start(self) -> None:
        """Return when others may rely on the service; raise if it cannot serve."""

    async def run(self) -> None:
        """Do the work until cancelled or done. A service that ends, ends the process with it."""

    async def stop(self) -> None:
        """Finish what is under way and release everything. Called once for every service whose start was tried."""


async def forever() -> None:
    """What a service runs that has nothing to do but be there."""
    await asyncio.Event().wait()


class Forced(TenantryError):
    """A second signal came while draining."""


async def run_services(services: Sequence[Service], *, ready: asyncio.Event | None = None) -> None:
    """Run until a signal, or until a service ends; an error of any service is raised after all have stopped."""
    stop = asyncio.Event()
    forced: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    forced.add_done_callback(lambda future: future.exception())
    _listen(stop, forced)
    started: list[Service] = []
    try:
        await _until(stop, _start(services, started))
        if not stop.is_set():
            if ready:
                ready.set()
            await _until(stop, _run(started))
    finally:
        draining = asyncio.ensure_future(_stop(started))
        either: list[asyncio.Future[Any]] = [draining, forced]
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if not draining.done():
            draining.cancel()
            await asyncio.gather(draining, return_exceptions=True)
            await forced
        await draining


def _listen(stop: asyncio.Event, forced: asyncio.Future[None]) -> None:
    def on_signal(number: signal.Signals) -> None:
        if not stop.is_set():
            DRAIN_REQUESTED.emit(signal=number.name)
            stop.set()
        elif not forced.done():
            DRAIN_FORCED.emit(signal=number.name)
            forced.set_exception(Forced(f"ended by a second {number.name}"))

    loop = asyncio.get_running_loop()
    for number in STOP_SIGNALS:
        loop.add_signal_handler(number, on_signal, number)


async def _until(stop: asyncio.Event, work: asyncio.Future[None]) -> None:
    """Wait for the work, or cancel it when asked to stop."""
    stopping = asyncio.ensure_future(stop.wait())
    try:
        either: list[asyncio.Future[Any]] = [work, stopping]
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
    finally:
        stopping.cancel()
        work.cancel()
        outcome = (await asyncio.gather(work, return_exceptions=True))[0]
    if isinstance(outcome, BaseException) and not isinstance(outcome, asyncio.CancelledError):
        raise outcome


def _start(services: Sequence[Service], started: list[Service]) -> asyncio.Future[None]:
    async def start_all() -> None:
        for service in services:
            started.append(service)
            with SERVICE_STARTED.span(service=service.name):
                await service.start()

    return asyncio.ensure_future(start_all())


def _run(services: Sequence[Service]) -> asyncio.Future[None]:
    async def run_all() -> None:
        # The first that ends ends all: a platform that lacks a part must not look alive.
        tasks = [asyncio.create_task(service.run(), name=service.name) for service in services]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        for task in done:
            task.result()

    return asyncio.ensure_future(run_all())


async def _stop(started: list[Service]) -> None:
    problems: list[Exception] = []
    for service in reversed(started):
        try:
            with SERVICE_STOPPED.span(service=service.name):
                await service.stop()
        except Exception as problem:
            problems.append(problem)
    if problems:
        raise problems[0] if len(problems) == 1 else ExceptionGroup("services failed to stop", problems)
