"""Hands events to a subscriber's function, and decides what becomes of those that it could not handle."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import psycopg
from psycopg_pool import PoolTimeout

from tenantry.application import Context, Event, Subscriber, key_of
from tenantry.application.context import Remember
from tenantry.errors import EventUndecodable, WorkerFenced
from tenantry.event import type_matcher
from tenantry.subscriptions.dead_letters import Death, State
from tenantry.subscriptions.holding import Holding
from tenantry.subscriptions.once import remember
from tenantry.subscriptions.parcel import Parcel
from tenantry.subscriptions.partitioning import part_of
from tenantry.subscriptions.reading import EventReader
from tenantry.telemetry import signal

FAILED = signal(
    "subscriptions.event_failed",
    "A handler could not handle an event; it is tried again.",
    "tenant",
    "service",
    "sequence",
    "attempt",
    "reason",
    "retry_seconds",
    level="warning",
)
DIED = signal(
    "subscriptions.event_died",
    "An event is a dead letter: it could not be handled, or it waits for one of the same key.",
    "tenant",
    "service",
    "sequence",
    "attempt",
    "state",
    "reason",
    level="warning",
)
UNBURIED = signal(
    "subscriptions.dead_letter_unwritten",
    "A dead letter cannot be written down; the event is kept, and tried again.",
    "tenant",
    "service",
    "error",
    level="error",
)

MOST_CRASHES: Final = 10
"""So often more than it is retried may an event be handed out, before it is what kills its workers."""
UNBURIED_SECONDS: Final = 5.0
FENCED_SECONDS: Final = 1.0


class NotNow(Exception):
    """Nothing of this partition is to be begun for so many seconds; what was to be has not been tried."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"not for {seconds:.1f} s")
        self.seconds = seconds


class Handling:
    """Of all events of one subscriber."""

    def __init__(
        self, subscriber: Subscriber, worker: str, threads: ThreadPoolExecutor, remember: Remember = remember
    ) -> None:
        self.subscriber = subscriber
        self._worker = worker
        self._threads = threads
        self._remember = remember
        self._reader = EventReader(subscriber.data)
        self._wants: Callable[[str], object] = type_matcher(subscriber.types)
        self._needs_key = subscriber.after_last_retry == "park_key"
        self._is_plain = subscriber.batch == 1 and subscriber.parts == 1 and not self._needs_key

    async def handle(self, holding: Holding, parcels: list[Parcel]) -> None:
        """Whatever happens, each parcel's source is told."""
        if not holding.is_current():
            for parcel in parcels:
                parcel.source.return_unhandled(parcel)
            return
        if len(parcels) > 1 and self.subscriber.after_last_retry == "stop" and not self._can_read(holding, parcels):
            # What comes before one that stops the lane is handled, and what comes after it is not.
            return _one_by_one(parcels)
        events: list[Event[Any]] = []
        accepted: list[Parcel] = []
        for parcel in parcels:
            event = await self._read(holding, parcel)
            if event is not None:
                events.append(event)
                accepted.append(parcel)
        if not events:
            return
        began = time.perf_counter()
        problem = await self._try(holding, accepted, events)
        holding.tally.busy_seconds += time.perf_counter() - began
        if problem is not None:
            return await self._failed(holding, accepted, events, problem)
        holding.tally.handled += len(accepted)
        for parcel in accepted:
            parcel.source.done(parcel)
        return None

    async def _try(self, holding: Holding, parcels: list[Parcel], events: list[Event[Any]]) -> Exception | None:
        """What the handler raised."""
        try:
            await self._call(holding, parcels, events)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                for parcel in parcels:
                    parcel.source.return_unhandled(parcel)
                raise
            return RuntimeError("the handler cancelled itself")
        except Exception as problem:
            return problem
        return None

    async def _read(self, holding: Holding, parcel: Parcel) -> Event[Any] | None:
        """The event, if it is to be handled here and now; if not, its source has been told."""
        partition, message = holding.partition, parcel.message
        try:
            event = self._reader.read(message.payload, partition.tenant, holding.lane.channel, message.sequence)
            if self._is_plain and parcel.attempt <= self.subscriber.retries + 1 and self._wants(event.type):
                return event
            return await self._sift(holding, parcel, event)
        except EventUndecodable as problem:
            await self._bury(holding, parcel, Death(str(problem), state=self._state_of_dead()))
            return None

    def _can_read(self, holding: Holding, parcels: list[Parcel]) -> bool:
        try:
            for parcel in parcels:
                self._reader.read(parcel.message.payload, holding.tenant, holding.lane.channel, parcel.sequence)
        except EventUndecodable:
            return False
        return True

    async def _sift(self, holding: Holding, parcel: Parcel, event: Event[Any]) -> Event[Any] | None:
        subscriber = self.subscriber
        if not self._wants(event.type):
            parcel.source.done(parcel)
            return None
        try:
            if subscriber.parts > 1 and part_of(subscriber, event) != holding.partition.part:
                # Another consumer of the same lane hands it out to whoever has that part.
                parcel.source.done(parcel)
                return None
            key = self._key(event)
        except Exception as problem:
            await self._bury(holding, parcel, Death.of(problem, **_known(event), state=self._state_of_dead()))
            return None
        if parcel.source.may_retry and parcel.attempt > subscriber.retries + MOST_CRASHES:
            reason = f"it was handed out {parcel.attempt - 1} times, and no worker has lived to say what came of it"
            await self._bury(holding, parcel, Death(reason, **_known(event), key=key, state=self._state(key)))
            return None
        if key in holding.parked and parcel.source.may_retry:
            reason = "an event of the same key could not be handled, and this one waits for it"
            await self._bury(holding, parcel, Death(reason, **_known(event), key=key, state="held"))
            return None
        return event

    async def _call(self, holding: Holding, parcels: list[Parcel], events: list[Event[Any]]) -> None:
        subscriber, last = self.subscriber, parcels[-1]
        context = Context(
            service=subscriber.name,
            tenant=holding.tenant,
            channel=holding.lane.channel,
            subject=last.subject,
            sequence=last.sequence,
            attempt=last.attempt,
            stored_at=last.message.stored_at,
            worker=self._worker,
            part=holding.partition.part,
            fence=holding.fence,
            is_replay=last.source.is_replay,
            event_id=events[0].id if len(events) == 1 else "",
            payload=last.message.payload,
            remember=self._remember,
        )
        given = events[0] if subscriber.batch == 1 else events
        if not subscriber.is_async:
            loop = asyncio.get_running_loop()
            work = loop.run_in_executor(self._threads, subscriber.function, given, context)
        else:
            work = subscriber.function(given, context)
        if subscriber.timeout is None:
            await work
        else:
            async with asyncio.timeout(subscriber.timeout):
                await work

    async def _failed(
        self, holding: Holding, parcels: list[Parcel], events: list[Event[Any]], problem: Exception
    ) -> None:
        if len(parcels) > 1:
            # Whose fault it is shows when each is handled by itself.
            return _one_by_one(parcels)
        if isinstance(problem, WorkerFenced):
            return parcels[0].source.put_off(parcels[0], FENCED_SECONDS)
        if isinstance(problem, NotNow):
            # It has not been tried.
            parcels[0].source.put_first(parcels)
            return holding.rest(problem.seconds)
        holding.tally.failed += 1
        subscriber, parcel, event = self.subscriber, parcels[0], events[0]
        if isinstance(problem, TimeoutError) and not str(problem) and subscriber.timeout is not None:
            problem = TimeoutError(f"the handler took longer than {subscriber.timeout:g} s")
        may_retry = parcel.source.may_retry and not isinstance(problem, EventUndecodable)
        if may_retry and parcel.attempt <= subscriber.retries:
            seconds = max(subscriber.backoff.pause(parcel.attempt), getattr(problem, "retry_seconds", None) or 0)
            FAILED.emit(**_about(holding, parcel), reason=_reason(problem), retry_seconds=round(seconds, 3))
            return parcel.source.put_off(parcel, seconds)
        key = self._key(event)
        await self._bury(holding, parcel, Death.of(problem, **_known(event), key=key, state=self._state(key)))

    async def _bury(self, holding: Holding, parcel: Parcel, death: Death) -> None:
        try:
            await parcel.source.bury(parcel, death)
        except (psycopg.Error, PoolTimeout) as problem:
            UNBURIED.emit(tenant=holding.tenant, service=self.subscriber.name, error=problem)
            parcel.source.put_off(parcel, UNBURIED_SECONDS)
        else:
            DIED.emit(**_about(holding, parcel), state=death.state, reason=death.reason)

    def _key(self, event: Event[Any]) -> str | None:
        if not self._needs_key:
            return None
        return key_of(self.subscriber.key, event, f"subscriber {self.subscriber.name}")

    def _state(self, key: str | None) -> State:
        if self.subscriber.after_last_retry == "park_key":
            return "parked" if key is not None else "dead"
        return self._state_of_dead()

    def _state_of_dead(self) -> State:
        """Of one that has no key."""
        return "stopped" if self.subscriber.after_last_retry == "stop" else "dead"


def _one_by_one(parcels: list[Parcel]) -> None:
    for parcel in parcels:
        parcel.is_alone = True
    parcels[0].source.put_first(parcels)


def _known(event: Event[Any]) -> dict[str, Any]:
    return {"event_id": event.id[:256], "type": event.type[:256], "trace": event.trace}


def _about(holding: Holding, parcel: Parcel) -> dict[str, Any]:
    partition = holding.partition
    return {
        "tenant": partition.tenant,
        "service": partition.service,
        "sequence": parcel.sequence,
        "attempt": parcel.attempt,
    }


def _reason(problem: Exception) -> str:
    return f"{type(problem).__name__}: {problem}"[:500]
