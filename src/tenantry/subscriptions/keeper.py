"""Keeps what this worker is to hold of all tenants: it claims, takes in, follows moves, and gives back."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from datetime import datetime
from typing import Any, Final, NamedTuple

import psycopg
from psycopg_pool import PoolTimeout

from tenantry.application import Subscriber
from tenantry.errors import BrokerError, TenantryError
from tenantry.event import now
from tenantry.service import end
from tenantry.subscriptions.dead_letters import Blocked, DeadLetters
from tenantry.subscriptions.dispatch import Dispatch
from tenantry.subscriptions.durables import durable_config, ensure_durable
from tenantry.subscriptions.feeds import Feeds
from tenantry.subscriptions.holding import Holding
from tenantry.subscriptions.intake import Intake
from tenantry.subscriptions.roll import Roll
from tenantry.subscriptions.spreading import Partition, Spread
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

OPENED_SIDE_BY_SIDE: Final = 64
FIRST_RETRY_SECONDS: Final = 0.1
LONGEST_RETRY_SECONDS: Final = 10.0

DATABASE_AWAY: Final = (psycopg.OperationalError, psycopg.InterfaceError, PoolTimeout)


class Wanted(NamedTuple):
    """Whose events, for which subscriber, and where they are."""

    subscriber: Subscriber
    tenant: Tenant
    lane: Lane


class Keeper:
    def __init__(
        self,
        subscribers: dict[str, Subscriber],
        roll: Roll,
        feeds: Feeds,
        letters: DeadLetters,
        *,
        roster: Roster,
        lanes: Lanes,
        drain_seconds: float,
        dispatch_of: Callable[[Subscriber], Dispatch],
        is_paused: Callable[[Partition], bool],
        closed: Callable[[Holding], None],
    ) -> None:
        self.holdings: dict[Partition, Holding] = {}
        self.look_now = asyncio.Event()
        self.since: dict[str, datetime] = {}
        """When each service came to be."""
        self._subscribers = subscribers
        self._roll = roll
        self._feeds = feeds
        self._letters = letters
        self._roster = roster
        self._lanes = lanes
        self._drain_seconds = drain_seconds
        self._dispatch_of = dispatch_of
        self._is_paused = is_paused
        self._closed = closed
        self._tasks: dict[Partition, asyncio.Task[None]] = {}
        """What is being done to a partition: it is taken over, opened again, or given back."""
        self._opening = asyncio.Semaphore(OPENED_SIDE_BY_SIDE)
        self._seen_roster = -1
        self._desired: dict[Partition, Wanted] = {}

    async def give_all_back(self) -> None:
        """Each as soon as what runs of it has ended."""
        await end([task for task in self._tasks.values() if task.get_name() == "open"])
        await asyncio.gather(*(self._release(holding) for holding in list(self.holdings.values())))

    def kill(self) -> None:
        for task in self._tasks.values():
            task.cancel()

    async def look(self) -> None:
        """Begin what has to be done so that this worker holds what it is to hold, and nothing else."""
        if not self._roll.is_current:
            return self._abandon(list(self.holdings.values()))
        wanted, spread = self._wanted(), Spread(self._roll.members)
        mine = {
            partition: each
            for partition, each in wanted.items()
            if spread.owner(partition, each.tenant.plan) == self._roll.id
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

    def _wanted(self) -> dict[Partition, Wanted]:
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
                        self._desired[partition] = Wanted(subscriber, tenant, lane)
        return self._desired

    def _may_claim(self, partition: Partition) -> bool:
        claim = self._roll.holder(partition)
        return claim is None or claim.worker == self._roll.id or not self._roll.is_there(claim.worker)

    def _is_ours(self, holding: Holding) -> bool:
        claim = self._roll.holder(holding.partition)
        return claim is not None and claim.worker == self._roll.id and claim.fence == holding.fence

    def _begin(self, partition: Partition, work: Coroutine[Any, Any, None], name: str) -> None:
        def ended(task: asyncio.Task[None]) -> None:
            if self._tasks.get(partition) is task:
                del self._tasks[partition]
            self.look_now.set()
            if not task.cancelled() and (problem := task.exception()):
                NOT_OPENED.emit(
                    tenant=partition.tenant,
                    service=partition.service,
                    reason=f"{type(problem).__name__}: {problem}",
                    retry_seconds=FIRST_RETRY_SECONDS,
                )

        task = self._tasks[partition] = asyncio.create_task(work, name=name)
        task.add_done_callback(ended)

    async def _take(self, partition: Partition, wanted: Wanted) -> None:
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
            holding.is_paused = self._is_paused(partition)
            self.holdings[partition] = holding
        await self._open(holding, wanted.tenant, is_takeover=before is not None)
        TAKEN.emit(tenant=partition.tenant, service=partition.service, fence=fence)

    async def _blocked(self, partition: Partition) -> dict[Partition, Blocked]:
        """Without knowing what waits for dead letters nothing may begin."""
        pause = FIRST_RETRY_SECONDS
        while True:
            try:
                return await self._letters.blocked([partition])
            except DATABASE_AWAY as problem:
                AWAY.emit(error=problem)
            await asyncio.sleep(pause)
            pause = min(2 * pause, LONGEST_RETRY_SECONDS)

    async def _move(self, holding: Holding, wanted: Wanted) -> None:
        """The lane is elsewhere by now: what runs ends, and then it goes on there."""
        holding.is_closing = True
        await holding.hush()
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
            since=self.since.get(subscriber.name) or now(),
        )
        state, is_new = await ensure_durable(jetstream, lane.stream, config)
        intake = Intake(
            feed,
            jetstream,
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
            state = await intake.reclaim(from_another=True)
        if holding.is_closing:
            return
        holding.intake = intake
        intake.open(state)
        holding.change_flow()

    def _lost_consumer(self, holding: Holding) -> None:
        """Somebody deleted it, or its stream; the registry may know where the lane is by now."""
        handled = self._close_intake(holding)
        if holding.partition in self._tasks or holding.is_closing:
            return

        async def again() -> None:
            await self._until_idle(holding)
            with suppress(*DATABASE_AWAY):
                await self._roster.refresh()
            wanted = self._wanted().get(holding.partition)
            if wanted and (wanted.lane, wanted.tenant.uid) == (holding.lane, holding.uid):
                await self._open(holding, wanted.tenant, is_takeover=False, handled=handled)

        self._begin(holding.partition, again(), "open")

    async def _release(self, holding: Holding) -> None:
        began = time.monotonic()
        holding.is_closing = True
        await holding.hush()
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
            async with asyncio.timeout(self._drain_seconds):
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
        self._closed(holding)
        intake, holding.intake = holding.intake, None
        if intake is None:
            return None
        intake.close()
        return intake.handled
