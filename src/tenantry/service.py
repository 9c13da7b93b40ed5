"""One lifecycle for everything that runs in the background.

A service starts, runs, and stops. `run_services` starts them in order, runs them side by side, and drains them in the
opposite order on the first SIGINT or SIGTERM, or when one of them ends. A second signal kills instead of waiting.
"""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass
from typing import Any, Final, Generic, Protocol, TypeVar

from tenantry.errors import Forced
from tenantry.telemetry import signal as declare

SERVICE_STARTED = declare("service.started", "A service is ready.", "service", "seconds", level="debug")
SERVICE_STOPPED = declare("service.stopped", "A service has drained.", "service", "seconds", "error", level="debug")
DRAIN_REQUESTED = declare("service.drain_requested", "A signal asked the process to end.", "signal")
DRAIN_FORCED = declare(
    "service.drain_forced", "A second signal ended the process without waiting.", "signal", level="warning"
)

Value = TypeVar("Value")

STOP_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)
FORCE_SECONDS: Final = 1.0
CANCEL_SECONDS: Final = 0.5


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

    def kill(self) -> None:
        """Leave nothing running, at once and without waiting."""


@dataclass(frozen=True, slots=True)
class Gate:
    """A service that only has to have started: those after it rely on what it made sure of."""

    name: str
    pass_through: Callable[[], Awaitable[object]]

    async def start(self) -> None:
        await self.pass_through()

    async def run(self) -> None:
        await forever()

    async def stop(self) -> None:
        pass

    def kill(self) -> None:
        pass


class Deferred:
    """A service that can only be made when its turn comes, for it needs what those before it have started."""

    def __init__(self, name: str, make: Callable[[], Service]) -> None:
        self.name = name
        self._make = make
        self._made: Service | None = None

    async def start(self) -> None:
        self._made = self._make()
        await self._made.start()

    async def run(self) -> None:
        assert self._made is not None
        await self._made.run()

    async def stop(self) -> None:
        if self._made is not None:
            await self._made.stop()

    def kill(self) -> None:
        if self._made is not None:
            self._made.kill()


class Held(Generic[Value]):
    """A service that keeps something open, from its start to its stop, for those after it to use."""

    def __init__(self, name: str, open: Callable[[], AbstractAsyncContextManager[Value]]) -> None:
        self.name = name
        self._open = open
        self._stack = AsyncExitStack()
        self._value: Value | None = None

    @property
    def value(self) -> Value:
        assert self._value is not None
        return self._value

    async def start(self) -> None:
        self._value = await self._stack.enter_async_context(self._open())

    async def run(self) -> None:
        await forever()

    async def stop(self) -> None:
        await self._stack.aclose()

    def kill(self) -> None:
        pass


async def side_by_side(*work: Coroutine[Any, Any, None]) -> None:
    """Do it all at once, until all is done or the first fails; whatever happens, nothing of it is left."""
    tasks = [asyncio.ensure_future(each) for each in work]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
        for task in done:
            task.result()
    finally:
        await end(tasks)


async def end(tasks: Iterable[asyncio.Future[Any]]) -> None:
    """Cancel until they have ended: some code, even of asyncio itself, now and then swallows a cancellation."""
    was_cancelled = False
    while pending := [task for task in tasks if not task.done()]:
        for task in pending:
            task.cancel()
        try:
            await asyncio.wait(pending, timeout=CANCEL_SECONDS)
        except asyncio.CancelledError:
            was_cancelled = True
    if was_cancelled:
        raise asyncio.CancelledError


async def forever() -> None:
    """What a service runs that has nothing to do but be there."""
    await asyncio.Event().wait()


async def run_services(services: Sequence[Service]) -> None:
    """Run until a signal, or until a service ends; errors of services are raised after all have stopped."""
    stop, force = asyncio.Event(), asyncio.Event()
    _listen(stop, force)
    started: list[Service] = []
    life = asyncio.ensure_future(_live(services, started, stop))
    forcing = asyncio.ensure_future(force.wait())
    await _first([life, forcing])
    if not life.done():
        for service in reversed(started):
            service.kill()
        life.cancel()
        await asyncio.wait([life], timeout=FORCE_SECONDS)
        raise Forced("ended by a second signal, without waiting")
    forcing.cancel()
    await life


def _listen(stop: asyncio.Event, force: asyncio.Event) -> None:
    def on_signal(number: signal.Signals) -> None:
        (DRAIN_FORCED if stop.is_set() else DRAIN_REQUESTED).emit(signal=number.name)
        (force if stop.is_set() else stop).set()

    loop = asyncio.get_running_loop()
    for number in STOP_SIGNALS:
        loop.add_signal_handler(number, on_signal, number)


async def _live(services: Sequence[Service], started: list[Service], stop: asyncio.Event) -> None:
    """The whole life of the services; whatever happens in it, all that were started are stopped."""
    stopping = asyncio.ensure_future(stop.wait())
    problems: list[Exception] = []
    try:
        for service in services:
            started.append(service)
            problems += await _work([_start(service)], stopping)
            if problems or stop.is_set():
                break
        else:
            problems += await _work([service.run() for service in services], stopping)
    finally:
        stopping.cancel()
        problems += [problem for service in reversed(started) if (problem := await _stop(service))]
    if problems:
        raise problems[0] if len(problems) == 1 else ExceptionGroup("several services failed", problems)


async def _work(work: Sequence[Coroutine[Any, Any, None]], stopping: asyncio.Future[Any]) -> list[Exception]:
    """Work side by side until the first is done or we are to stop; what is then left of it is cancelled."""
    tasks = [asyncio.ensure_future(each) for each in work]
    try:
        await _first([*tasks, stopping])
    finally:
        await end(tasks)
    # The first that ended ends all: a platform that lacks a part must not look alive.
    outcomes = await asyncio.gather(*tasks, return_exceptions=True)
    return [outcome for outcome in outcomes if isinstance(outcome, Exception)]


async def _first(futures: list[asyncio.Future[Any]]) -> None:
    await asyncio.wait(futures, return_when=asyncio.FIRST_COMPLETED)


async def _start(service: Service) -> None:
    began = time.perf_counter()
    await service.start()
    SERVICE_STARTED.emit(service=service.name, seconds=time.perf_counter() - began)


async def _stop(service: Service) -> Exception | None:
    try:
        with SERVICE_STOPPED.span(service=service.name):
            await service.stop()
    except Exception as problem:
        return problem
    return None
