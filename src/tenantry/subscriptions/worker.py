"""A worker: it claims its share of all tenants, hands their events to handlers, and gives back what is not its own."""

from __future__ import annotations

import asyncio
import os
import random
import socket
import time
from collections.abc import Awaitable, Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, NamedTuple

import psycopg
from psycopg_pool import PoolTimeout

from tenantry.application import Subscriber
from tenantry.errors import BrokerError, TenantryError
from tenantry.event import now
from tenantry.nats.connections import Broker
from tenantry.postgres.pool import Pool
from tenantry.service import end
from tenantry.subscriptions.dead_letters import DeadLetters
from tenantry.subscriptions.dispatch import Dispatch
from tenantry.subscriptions.durables import durable_config, ensure_durable
from tenantry.subscriptions.feeds import Feeds
from tenantry.subscriptions.handling import Handling
from tenantry.subscriptions.holding import Holding
from tenantry.subscriptions.intake import Intake
from tenantry.subscriptions.parcel import Parcel
from tenantry.subscriptions.roll import Roll
from tenantry.subscriptions.services import Services
from tenantry.subscriptions.spreading import Member, Partition, Spread
from tenantry.telemetry import signal
from tenantry.tenants.lanes import Lane, Lanes
from tenantry.tenants.roster import Roster
from tenantry.tenants.tenant import Status, Tenant

TAKEN = signal("subscriptions.taken", "A worker handles a tenant's events from now on.", "tenant", "service", "fence")
GIVEN_BACK = signal(
    "subscriptions.given_back", "A worker handles a tenant's events no more.", "tenant", "service", "seconds"
)
NOT_OPENED = signal(
    "subscriptions.not_opened",
    "A tenant's events cannot be taken in; it is tried again, and others are not affected.",
    "tenant",
    "service",
    "reason",
    "retry_seconds",
    level="warning",
)
AWAY = signal(
    "subscriptions.database_away",
    "What is paused, or to be handled again, cannot be read; all else goes on.",
    "error",
    level="warning",
)

HOST: Final = socket.gethostname()
LOOK_SECONDS: Final = 0.5
ATTEND_SECONDS: Final = 1.0
KEEP_SECONDS: Final = 0.5
SEEN_SECONDS: Final = 10.0
OPENED_SIDE_BY_SIDE: Final = 64
LETTERS_AT_ONCE: Final = 500
FIRST_RETRY_SECONDS: Final = 0.1
LONGEST_RETRY_SECONDS: Final = 10.0

_AWAY: Final = (psycopg.Error, PoolTimeout)


@dataclass(frozen=True, slots=True)
class Limits:
    """How much a worker does at once, and how long it lets handlers end when it has to stop."""

    slots: int = 200
    threads: int = 16
    drain_seconds: float = 20.0


class _Wanted(NamedTuple):
    subscriber: Subscriber
    tenant: Tenant
    lane: Lane


class Worker:
    """A service."""

    name = "worker"

    def __init__(
        self,
        app: str,
        subscribers: Iterable[Subscriber],
        *,
        broker: Broker,
        roster: Roster,
        lanes: Lanes,
        pool: Pool,
        replicas: int = 1,
        tenants: frozenset[str] = frozenset(),
        plans: frozenset[str] = frozenset(),
        limits: Limits | None = None,
        id: str = "",
    ) -> None:
        self.id = id or f"{random.getrandbits(48):012x}"
        self.holdings: dict[Partition, Holding] = {}
        self._app = app
        self._subscribers = {subscriber.name: subscriber for subscriber in subscribers}
        self._roster = roster
        self._lanes = lanes
        self._tenants = tenants
        self._plans = plans
        self._limits = limits or Limits()
        self._services = Services(pool)
        self._letters = DeadLetters(pool)
        self._since: dict[str, datetime] = {}
        self._roll = Roll(lanes.app, broker, replicas, self._introduce)
        self._feeds = Feeds("tenantry-worker")
        self._is_leaving = False
        self._look_now = asyncio.Event()
        self._attend_now = asyncio.Event()
        self._tasks: dict[Partition, asyncio.Task[None]] = {}
        """What is being done to a partition: it is taken over, opened again, or given back."""
        self._opening = asyncio.Semaphore(OPENED_SIDE_BY_SIDE)
        self._seen_roster = -1
        self._desired: dict[Partition, _Wanted] = {}
        self._loops: list[asyncio.Task[None]] = []

    # -- life -------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        limits = self._limits
        self._threads = ThreadPoolExecutor(limits.threads, thread_name_prefix="handler")
        self._handlings = {name: Handling(each, self.id, self._threads) for name, each in self._subscribers.items()}
        # Handlers that block have a dispatch of their own: there are only so many threads.
        self._dispatch = Dispatch(limits.slots, self._handle)
        self._blocking = Dispatch(limits.threads, self._handle)
        for subscriber in self._subscribers.values():
            self._since[subscriber.name] = await self._services.register(self._app, subscriber)
        await self._roll.start()
        await self._attend()
        self._loops = [
            asyncio.create_task(self._loop(self._look, LOOK_SECONDS, self._look_now), name="worker look"),
            asyncio.create_task(self._loop(self._attend, ATTEND_SECONDS, self._attend_now), name="worker attend"),
            asyncio.create_task(self._keep(), name="worker keep"),
            asyncio.create_task(self._follow_roll(), name="worker roll"),
        ]

    async def run(self) -> None:
        done, _ = await asyncio.wait(
            [*self._loops, asyncio.ensure_future(self._roll.run())], return_when=asyncio.FIRST_COMPLETED
        )
        for task in done:
            task.result()

    async def stop(self) -> None:
        """Hand over everything, each tenant as soon as what runs of it has ended."""
        self._is_leaving = True
        await end(self._loops)
        with suppress(BrokerError):
            await self._roll.introduce()
        await end([task for task in self._tasks.values() if task.get_name() == "open"])
        await asyncio.gather(*(self._release(holding) for holding in list(self.holdings.values())))
        await self._roll.leave()
        await self._dispatch.close()
        await self._blocking.close()
        await self._feeds.close()
        await self._roll.stop()
        self._threads.shutdown(wait=False, cancel_futures=True)

    def kill(self) -> None:
        for task in (*self._loops, *self._tasks.values()):
            task.cancel()

    @property
    def members(self) -> list[Member]:
        return self._roll.members

    def _introduce(self) -> Member:
        return Member(
            id=self.id,
            app=self._app,
            services=frozenset(self._subscribers),
            tenants=self._tenants,
            plans=self._plans,
            host=HOST,
            pid=os.getpid(),
            is_leaving=self._is_leaving,
            load=self.load(),
        )

    @property
    def _slots(self) -> int:
        """How many handlers can run at once, of those that there are."""
        kinds = {subscriber.is_async for subscriber in self._subscribers.values()}
        return sum(self._limits.slots if is_async else self._limits.threads for is_async in kinds)

    def load(self) -> dict[str, Any]:
        holdings = self.holdings.values()
        return {
            "partitions": len(holdings),
            "slots": self._slots,
            "running": sum(len(holding.running) for holding in holdings),
            "lag": sum(holding.lag for holding in holdings),
            "handled": sum(holding.handled for holding in holdings),
            "busy_seconds": round(sum(holding.busy_seconds for holding in holdings), 3),
            "cpu_seconds": round(time.process_time(), 3),
        }

    async def _loop(self, act: Callable[[], Awaitable[None]], seconds: float, woken: asyncio.Event) -> None:
        while True:
            await act()
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await woken.wait()
            woken.clear()

    async def _follow_roll(self) -> None:
        while True:
            await self._roll.changed.wait()
            self._roll.changed.clear()
            self._look_now.set()

    async def _keep(self) -> None:
        """What has to be done again and again for all that is held."""
        seen_at = 0.0
        while True:
            await asyncio.sleep(KEEP_SECONDS)
            moment = asyncio.get_running_loop().time()
            for holding in self.holdings.values():
                for intake in (holding.intake, *holding.replays):
                    if intake is not None:
                        intake.keep(moment)
                if holding.is_astray:
                    holding.change_flow()
            if moment - seen_at > SEEN_SECONDS:
                seen_at = moment
                with suppress(*_AWAY):
                    await self._services.keep(self._app, list(self._subscribers))
                await self._feeds.close_unused()

    # -- who has what -----------------------------------------------------------------------------------------------

    async def _look(self) -> None:
        """Begin what has to be done so that this worker holds what it is to hold, and nothing else."""
        if not self._roll.is_current:
            return self._abandon(list(self.holdings.values()))
        wanted, spread = self._wanted(), Spread(self._roll.members)
        mine = {
            partition: each
            for partition, each in wanted.items()
            if spread.owner(partition, each.tenant.plan) == self.id
        }
        self._abandon([holding for holding in self.holdings.values() if not self._is_ours(holding)])
        for partition, holding in list(self.holdings.items()):
            if partition in self._tasks:
                continue
            if partition not in mine:
                self._begin(partition, self._release(holding), "release")
            elif (mine[partition].lane, mine[partition].tenant.uid) != (holding.lane, holding.uid):
                self._begin(partition, self._move(holding, mine[partition]), "open")
            else:
                holding.weight = mine[partition].tenant.limits.weight
        for partition, each in mine.items():
            if partition not in self.holdings and partition not in self._tasks and self._may_claim(partition):
                self._begin(partition, self._take(partition, each), "open")
        return None

    def _wanted(self) -> dict[Partition, _Wanted]:
        """All that somebody should hold."""
        if self._roster.changes != self._seen_roster:
            self._seen_roster = self._roster.changes
            self._desired = {}
            for tenant in self._roster:
                for subscriber in self._subscribers.values():
                    lane = self._roster.lane(tenant.id, subscriber.channel)
                    if tenant.status != Status.ACTIVE or lane is None:
                        continue
                    for part in range(subscriber.parts):
                        partition = Partition(subscriber.name, tenant.id, part)
                        self._desired[partition] = _Wanted(subscriber, tenant, lane)
        return self._desired

    def _may_claim(self, partition: Partition) -> bool:
        claim = self._roll.holder(partition)
        return claim is None or claim.worker == self.id or not self._roll.is_there(claim.worker)

    def _is_ours(self, holding: Holding) -> bool:
        claim = self._roll.holder(holding.partition)
        return claim is not None and claim.worker == self.id and claim.fence == holding.fence

    def _begin(self, partition: Partition, work: Any, name: str) -> None:
        def ended(task: asyncio.Task[None]) -> None:
            self._tasks.pop(partition, None)
            self._look_now.set()
            if not task.cancelled() and (problem := task.exception()):
                NOT_OPENED.emit(
                    tenant=partition.tenant,
                    service=partition.service,
                    reason=f"{type(problem).__name__}: {problem}",
                    retry_seconds=LOOK_SECONDS,
                )

        task = self._tasks[partition] = asyncio.create_task(work, name=name)
        task.add_done_callback(ended)

    async def _take(self, partition: Partition, wanted: _Wanted) -> None:
        async with self._opening:
            before = self._roll.holder(partition)
            fence = await self._roll.claim(partition)
            if fence is None:
                return
            blocked = await self._blocked(partition)
            holding = Holding(
                partition,
                wanted.subscriber,
                wanted.lane,
                fence,
                uid=wanted.tenant.uid,
                weight=wanted.tenant.limits.weight,
                letters=self._letters,
                offer=self._dispatch_of(wanted.subscriber).offer,
            )
            holding.block(blocked.get(partition))
            holding.is_paused = (partition.service, partition.tenant) in self._paused
            self.holdings[partition] = holding
        await self._open(holding, wanted.tenant, is_takeover=before is not None)
        TAKEN.emit(tenant=partition.tenant, service=partition.service, fence=fence)

    async def _blocked(self, partition: Partition) -> dict[Partition, Any]:
        """Without knowing what waits for dead letters nothing may begin."""
        pause = FIRST_RETRY_SECONDS
        while True:
            try:
                return await self._letters.blocked([partition])
            except _AWAY as problem:
                AWAY.emit(error=problem)
            await asyncio.sleep(pause)
            pause = min(2 * pause, LONGEST_RETRY_SECONDS)

    async def _move(self, holding: Holding, wanted: _Wanted) -> None:
        """The lane is elsewhere by now: what runs ends, and then it goes on there."""
        holding.is_closing = True
        if holding.intake is not None:
            await holding.intake.hush()
        await self._until_idle(holding)
        is_same = holding.uid == wanted.tenant.uid
        before = self._close_intake(holding)
        holding.lane, holding.uid = wanted.lane, wanted.tenant.uid
        holding.is_closing = False
        await self._open(holding, wanted.tenant, is_takeover=True, handled=before if is_same else None)

    async def _open(
        self, holding: Holding, tenant: Tenant, *, is_takeover: bool, handled: dict[int, None] | None = None
    ) -> None:
        """Take in the tenant's events; it is tried until it works, or is not wanted any more."""
        pause = FIRST_RETRY_SECONDS
        while holding.intake is None and not holding.is_closing:
            try:
                async with self._opening:
                    await self._open_once(holding, tenant, is_takeover, handled)
                holding.problem = ""
                return
            except TenantryError as problem:
                holding.problem = str(problem)
                NOT_OPENED.emit(
                    tenant=holding.tenant,
                    service=holding.subscriber.name,
                    reason=str(problem),
                    retry_seconds=round(pause, 3),
                )
            await asyncio.sleep(pause * random.uniform(0.5, 1.0))
            pause = min(2 * pause, LONGEST_RETRY_SECONDS)
            current = self._wanted().get(holding.partition)
            if current is None or (current.lane, current.tenant.uid) != (holding.lane, holding.uid):
                # The next look sees to it.
                return

    async def _open_once(
        self, holding: Holding, tenant: Tenant, is_takeover: bool, handled: dict[int, None] | None
    ) -> None:
        subscriber, lane = holding.subscriber, holding.lane
        feed, jetstream = self._feeds.of(lane.broker)
        in_flight = subscriber.in_flight if subscriber.is_fifo else min(subscriber.in_flight, tenant.limits.in_flight)
        config = durable_config(
            lane,
            subscriber,
            holding.partition.part,
            in_flight=in_flight,
            replicas=min(tenant.limits.consumer_replicas, self._lanes.replicas(tenant)),
            since=self._since.get(subscriber.name) or now(),
        )
        state, is_new = await ensure_durable(jetstream, lane.stream, config)
        intake = Intake(
            feed,
            lane.stream,
            config["name"],
            ack_wait=subscriber.ack_wait,
            in_order=subscriber.is_fifo,
            is_current=lambda: self._roll.is_current,
            offer=lambda: self._dispatch_of(subscriber).offer(holding),
            bury=holding.bury,
            gone=lambda: self._lost_consumer(holding),
        )
        if handled and not is_new:
            intake.remember(handled)
        if is_takeover and not is_new:
            state = await intake.reclaim(jetstream, all_of_it=True)
        if holding.is_closing:
            return
        holding.intake, holding.jetstream = intake, jetstream
        intake.open(state)
        holding.change_flow()

    def _lost_consumer(self, holding: Holding) -> None:
        """Somebody deleted it, or its stream; the registry may know where the lane is by now."""
        handled = self._close_intake(holding)
        if holding.partition in self._tasks or holding.is_closing:
            return

        async def again() -> None:
            await self._until_idle(holding)
            with suppress(*_AWAY):
                await self._roster.refresh()
            wanted = self._wanted().get(holding.partition)
            if wanted and (wanted.lane, wanted.tenant.uid) == (holding.lane, holding.uid):
                await self._open(holding, wanted.tenant, is_takeover=False, handled=handled)

        self._begin(holding.partition, again(), "open")

    async def _release(self, holding: Holding) -> None:
        began = time.monotonic()
        holding.is_closing = True
        if holding.intake is not None:
            await holding.intake.hush()
        await self._until_idle(holding)
        await self._forget(holding)
        with suppress(BrokerError):
            await self._roll.release(holding.partition)
        GIVEN_BACK.emit(
            tenant=holding.tenant, service=holding.subscriber.name, seconds=round(time.monotonic() - began, 3)
        )

    async def _until_idle(self, holding: Holding) -> None:
        """What runs may end by itself, for a while."""
        try:
            async with asyncio.timeout(self._limits.drain_seconds):
                await holding.until_idle()
        except TimeoutError:
            self._dispatch_of(holding.subscriber).cut_short(holding)
            await holding.until_idle()

    def _abandon(self, holdings: list[Holding]) -> None:
        """They may be somebody else's by now: everything ends at once, and nothing more is said."""
        for holding in holdings:
            holding.is_closing = True
            self._dispatch_of(holding.subscriber).cut_short(holding)
            task = self._tasks.pop(holding.partition, None)
            if task is not None:
                task.cancel()
            self._begin(holding.partition, self._forget(holding), "forget")

    async def _forget(self, holding: Holding) -> None:
        self._close_intake(holding)
        if self.holdings.get(holding.partition) is holding:
            del self.holdings[holding.partition]
        await holding.redriving.close()

    def _close_intake(self, holding: Holding) -> dict[int, None] | None:
        intake, holding.intake = holding.intake, None
        if intake is None:
            return None
        intake.close()
        return intake.handled

    # -- what is asked of it ----------------------------------------------------------------------------------------

    _paused: frozenset[tuple[str, str]] | set[tuple[str, str]] = frozenset()

    async def _attend(self) -> None:
        """Who is paused, and what is to be handled again."""
        try:
            self._paused = await self._services.paused()
            for holding in self.holdings.values():
                is_paused = (holding.partition.service, holding.tenant) in self._paused
                if is_paused != holding.is_paused:
                    holding.is_paused = is_paused
                    holding.change_flow()
            if self.holdings:
                for letter in await self._letters.asked_for(list(self.holdings), LETTERS_AT_ONCE):
                    if (held := self.holdings.get(letter.partition)) is not None:
                        held.redriving.add([letter])
        except _AWAY as problem:
            AWAY.emit(error=problem)

    # -- handling ---------------------------------------------------------------------------------------------------

    def _dispatch_of(self, subscriber: Subscriber) -> Dispatch:
        return self._dispatch if subscriber.is_async else self._blocking

    async def _handle(self, holding: Holding, parcels: list[Parcel]) -> None:
        await self._handlings[holding.subscriber.name].handle(holding, parcels)
