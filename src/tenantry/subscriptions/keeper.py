"""Keeps what this worker is to hold of all tenants: it claims, takes in, follows moves, and gives back."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, Final

from tenantry.application import Subscriber
from tenantry.errors import BrokerError, SubscriptionConflict, TenantryError
from tenantry.nats.jetstream import Config, JetStream
from tenantry.service import end
from tenantry.subscriptions.database import AWAY, DATABASE_AWAY
from tenantry.subscriptions.dead_letters import Blocked, DeadLetters
from tenantry.subscriptions.demand import Demand, Wanted
from tenantry.subscriptions.dispatch import Dispatch
from tenantry.subscriptions.durables import ensure_durable, renew_durable
from tenantry.subscriptions.feeds import Feeds
from tenantry.subscriptions.holding import Holding, Tally
from tenantry.subscriptions.intake import Intake
from tenantry.subscriptions.roll import Roll
from tenantry.subscriptions.spreading import Partition, Spread
from tenantry.telemetry import signal

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
OPENED_SIDE_BY_SIDE: Final = 64
MEMORY_BYTES: Final = 256 << 20
"""Of events that wait in this process, about."""
CUT_SECONDS: Final = 0.5
FIRST_RETRY_SECONDS: Final = 0.1
LONGEST_RETRY_SECONDS: Final = 10.0


class Keeper:
    def __init__(
        self,
        demand: Demand,
        roll: Roll,
        feeds: Feeds,
        letters: DeadLetters,
        *,
        drain_seconds: float,
        dispatch_of: Callable[[Subscriber], Dispatch],
        is_paused: Callable[[Partition], bool],
        closed: Callable[[Holding], None],
    ) -> None:
        self.holdings: dict[Partition, Holding] = {}
        self.look_now = asyncio.Event()
        self.past = Tally()
        """Of what is held no more."""
        self._demand = demand
        self._roll = roll
        self._feeds = feeds
        self._letters = letters
        self._drain_seconds = drain_seconds
        self._dispatch_of = dispatch_of
        self._is_paused = is_paused
        self._closed = closed
        self._tasks: dict[Partition, asyncio.Task[None]] = {}
        """What is being done to a partition: it is taken over, opened again, or given back."""
        self._opening = asyncio.Semaphore(OPENED_SIDE_BY_SIDE)

    async def give_all_back(self) -> None:
        """Each as soon as what runs of it has ended."""
        await end([task for task in self._tasks.values() if task.get_name() in ("open", "take")])
        await asyncio.gather(*(self._release(holding) for holding in list(self.holdings.values())))

    def has_given_back(self, partition: Partition) -> bool:
        return partition not in self.holdings and partition not in self._tasks

    def kill(self) -> None:
        for task in self._tasks.values():
            task.cancel()

    async def look(self) -> None:
        """Begin what has to be done so that this worker holds what it is to hold, and nothing else."""
        if not self._roll.is_current:
            return self._abandon(list(self.holdings.values()))
        spread = Spread(self._roll.members)
        mine = {
            partition: wanted
            for partition, wanted in self._demand.partitions.items()
            if spread.owner(partition, wanted.plan) == self._roll.id
        }
        self._abandon([holding for holding in self.holdings.values() if not self._is_ours(holding)])
        for partition, holding in list(self.holdings.items()):
            if partition in self._tasks:
                continue
            if partition not in mine:
                self._begin(partition, self._release(holding), "release")
            elif not mine[partition].is_like(holding.wanted):
                self._begin(partition, self._change(holding, mine[partition]), "open")
            elif holding.intake is None and not holding.is_closing:
                self._begin(partition, self._open(holding, is_takeover=True), "open")
            else:
                holding.wanted = mine[partition]
        free = {
            partition: wanted
            for partition, wanted in mine.items()
            if partition not in self.holdings and partition not in self._tasks and self._may_claim(partition)
        }
        if free:
            task = asyncio.create_task(self._take(free), name="take")
            for partition in free:
                self._register(partition, task)
        return None

    def _may_claim(self, partition: Partition) -> bool:
        claim = self._roll.holder(partition)
        return claim is None or claim.worker == self._roll.id or not self._roll.is_there(claim.worker)

    def _is_ours(self, holding: Holding) -> bool:
        claim = self._roll.holder(holding.partition)
        is_claimed = claim is not None and claim.worker == self._roll.id and claim.fence == holding.fence
        return is_claimed and holding.is_current()

    def _begin(self, partition: Partition, work: Coroutine[Any, Any, None], name: str) -> None:
        self._register(partition, asyncio.create_task(work, name=name))

    def _register(self, partition: Partition, task: asyncio.Task[None]) -> None:
        self._tasks[partition] = task

        def ended(task: asyncio.Task[None]) -> None:
            if self._tasks.get(partition) is task:
                del self._tasks[partition]
            problem = None if task.cancelled() else task.exception()
            if problem is None:
                self.look_now.set()
            else:
                # It is tried again when it is looked next, and not at once.
                NOT_OPENED.emit(
                    tenant=partition.tenant,
                    service=partition.service,
                    reason=f"{type(problem).__name__}: {problem}",
                    retry_seconds=FIRST_RETRY_SECONDS,
                )

        task.add_done_callback(ended)

    async def _take(self, free: dict[Partition, Wanted]) -> None:
        """Claim them, and begin to handle those that are now ours."""
        before = {partition: self._roll.holder(partition) for partition in free}
        fences = await asyncio.gather(*(self._claim(partition) for partition in free))
        claimed = {partition: fence for partition, fence in zip(free, fences, strict=True) if fence is not None}
        # Where nothing waits for dead letters, a database that is away is no reason to wait, either.
        careful = [each for each in claimed if free[each].subscriber.after_last_retry != "skip"]
        blocked = await self._blocked(careful) if careful else {}
        for partition, fence in claimed.items():
            wanted = free[partition]
            holding = Holding(
                partition,
                wanted,
                fence,
                letters=self._letters,
                offer=self._dispatch_of(wanted.subscriber).offer,
                is_current=self._currency(),
            )
            holding.block(blocked.get(partition))
            holding.is_paused = self._is_paused(partition)
            self.holdings[partition] = holding
            self._begin(partition, self._open(holding, is_takeover=before[partition] is not None), "open")
            TAKEN.emit(tenant=partition.tenant, service=partition.service, fence=fence)

    def _currency(self) -> Callable[[], bool]:
        """Tells whether what is taken now may still be acted on."""
        roll, term = self._roll, self._roll.term
        return lambda: roll.is_current and roll.term == term

    async def _claim(self, partition: Partition) -> int | None:
        async with self._opening:
            try:
                return await self._roll.claim(partition)
            except BrokerError:
                # It is looked at again.
                return None

    async def _blocked(self, partitions: list[Partition]) -> dict[Partition, Blocked]:
        """Without knowing what waits for dead letters nothing may begin."""
        pause = FIRST_RETRY_SECONDS
        while True:
            try:
                return await self._letters.blocked(partitions)
            except DATABASE_AWAY as problem:
                AWAY.emit(error=problem)
            await asyncio.sleep(pause)
            pause = min(2 * pause, LONGEST_RETRY_SECONDS)

    async def _change(self, holding: Holding, wanted: Wanted) -> None:
        """The lane is elsewhere by now, or the service is another: what runs ends, and then it goes on so."""
        holding.is_closing = True
        await holding.hush()
        await self._until_idle(holding)
        self._close_intake(holding)
        holding.become(wanted)
        holding.is_closing = False
        await self._open(holding, is_takeover=True)

    async def _open(self, holding: Holding, *, is_takeover: bool) -> None:
        """Take in the tenant's events; it is tried until it works, or is not wanted any more."""
        pause = FIRST_RETRY_SECONDS
        while holding.intake is None and not holding.is_closing:
            try:
                async with self._opening:
                    await self._open_once(holding, is_takeover)
                return
            except TenantryError as problem:
                NOT_OPENED.emit(
                    tenant=holding.tenant,
                    service=holding.subscriber.name,
                    reason=str(problem),
                    retry_seconds=round(pause, 3),
                )
            await asyncio.sleep(pause * random.uniform(0.5, 1.0))
            pause = min(2 * pause, LONGEST_RETRY_SECONDS)
            if not self._is_still_wanted(holding):
                # The next look sees to it.
                return

    def _is_still_wanted(self, holding: Holding) -> bool:
        wanted = self._demand.partitions.get(holding.partition)
        return wanted is not None and wanted.is_like(holding.wanted)

    async def _open_once(self, holding: Holding, is_takeover: bool) -> None:
        wanted, subscriber = holding.wanted, holding.subscriber
        feed, jetstream = self._feeds.of(wanted.lane.broker)
        state, is_new = await _ensure_consumer(jetstream, wanted)
        if is_new:
            # Whatever it has is to be handled, also what somebody had handled before it was deleted.
            holding.handled.clear()
        intake = Intake(
            feed,
            jetstream,
            wanted.lane.stream,
            wanted.consumer,
            handled=holding.handled,
            ack_wait=subscriber.ack_wait,
            in_order=subscriber.is_fifo,
            is_ours=wanted.config is not None,
            most_bytes=lambda: MEMORY_BYTES / max(1, len(self.holdings)),
            is_current=holding.is_current,
            offer=lambda: self._dispatch_of(subscriber).offer(holding),
            bury=holding.bury,
            gone=lambda: self._lost_consumer(holding),
        )
        if not is_new and state and (is_takeover or state["num_ack_pending"]):
            if is_takeover and state.get("num_waiting") and wanted.config is not None:
                # Somebody who counts as gone still asks for more.
                await renew_durable(jetstream, wanted.lane.stream, state)
            state = await intake.reclaim()
        if holding.is_closing:
            return
        holding.intake = intake
        intake.open(state)
        holding.change_flow()

    def _lost_consumer(self, holding: Holding) -> None:
        """Somebody deleted it, or its stream; the registry may know where the lane is by now."""
        self._close_intake(holding)
        if holding.partition in self._tasks or holding.is_closing:
            return

        async def again() -> None:
            await self._until_idle(holding)
            # Somebody may be at it just now.
            await asyncio.sleep(FIRST_RETRY_SECONDS * random.uniform(1, 3))
            with suppress(*DATABASE_AWAY):
                await self._demand.refresh()
            if self._is_still_wanted(holding):
                await self._open(holding, is_takeover=False)

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
        """What runs may end by itself, for a while; a plain function for as long as it takes, as nothing can end it."""
        if not holding.subscriber.is_async:
            return await holding.until_idle()
        try:
            async with asyncio.timeout(self._drain_seconds):
                await holding.until_idle()
        except TimeoutError:
            await self._cut_short(holding)
        return None

    async def _cut_short(self, holding: Holding) -> None:
        """Some code swallows a cancellation: it is told again."""
        while holding.running:
            self._dispatch_of(holding.subscriber).cut_short(holding)
            with suppress(TimeoutError):
                async with asyncio.timeout(CUT_SECONDS):
                    await holding.until_idle()

    def _abandon(self, holdings: list[Holding]) -> None:
        """They may be somebody else's by now: everything ends at once, and nothing more is said."""
        for holding in holdings:
            task = self._tasks.get(holding.partition)
            if task is not None and task.get_name() == "forget":
                continue
            holding.is_closing = True
            if holding.subscriber.is_async:
                self._dispatch_of(holding.subscriber).cut_short(holding)
            if task is not None:
                task.cancel()
            self._begin(holding.partition, self._forget(holding), "forget")

    async def _forget(self, holding: Holding) -> None:
        self._close_intake(holding)
        # A plain function cannot be ended: until it has, this worker at least does not begin anew.
        await holding.until_idle()
        if self.holdings.get(holding.partition) is holding:
            del self.holdings[holding.partition]
            self.past += holding.tally
        await holding.redriving.close()

    def _close_intake(self, holding: Holding) -> None:
        self._closed(holding)
        intake, holding.intake = holding.intake, None
        if intake is not None:
            intake.close()


async def _ensure_consumer(jetstream: JetStream, wanted: Wanted) -> tuple[Config, bool]:
    """Its state, as far as we may know it, and whether it was made just now."""
    if wanted.config is not None:
        return await ensure_durable(jetstream, wanted.lane.stream, wanted.config)
    try:
        state = await jetstream.consumer(wanted.lane.stream, wanted.consumer)
    except BrokerError:
        # Whoever provisioned it may let us do no more than fetch and acknowledge.
        return {}, False
    if state is not None and state["config"].get("deliver_subject"):
        raise SubscriptionConflict(
            f"consumer {wanted.consumer} on stream {wanted.lane.stream} for tenant {wanted.lane.tenant} pushes to "
            f"{state['config']['deliver_subject']}, and only one that is pulled from can be handled; make another"
        )
    if state is None:
        raise SubscriptionConflict(
            f"there is no consumer {wanted.consumer} on stream {wanted.lane.stream} for tenant {wanted.lane.tenant}; "
            "create it, or correct the name"
        )
    return state, False
