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
from typing import Any, Final

from tenantry.application import Subscriber
from tenantry.nats.connections import Broker
from tenantry.postgres.pool import Pool
from tenantry.service import end
from tenantry.subscriptions.accounts import ForeignAccounts
from tenantry.subscriptions.attendant import Attendant
from tenantry.subscriptions.database import AWAY, DATABASE_AWAY
from tenantry.subscriptions.dead_letters import DeadLetters
from tenantry.subscriptions.demand import Demand
from tenantry.subscriptions.dispatch import Dispatch
from tenantry.subscriptions.feeds import Feeds
from tenantry.subscriptions.handling import Handling
from tenantry.subscriptions.holding import Holding
from tenantry.subscriptions.keeper import Keeper
from tenantry.subscriptions.parcel import Parcel
from tenantry.subscriptions.push_delivery import Deliverer
from tenantry.subscriptions.push_endpoints import PushEndpoints
from tenantry.subscriptions.pushing import Pushing
from tenantry.subscriptions.replaying import Replays
from tenantry.subscriptions.roll import Roll
from tenantry.subscriptions.services import Services
from tenantry.subscriptions.spreading import ACCOUNTS, PUSH, Member, Partition
from tenantry.telemetry import signal
from tenantry.tenants.accounts_directory import AccountsDirectory, Consume
from tenantry.tenants.lanes import Lanes
from tenantry.tenants.roster import Roster

HOST: Final = socket.gethostname()
NOT_HANDLED = signal(
    "subscriptions.not_handled",
    "Something unforeseen went wrong around a handler; its events are tried again.",
    "tenant",
    "service",
    "error",
    level="error",
)

UNFORESEEN_SECONDS: Final = 5.0
LOOK_SECONDS: Final = 0.5
ATTEND_SECONDS: Final = 1.0
KEEP_SECONDS: Final = 0.5
SEEN_SECONDS: Final = 10.0
TOGETHER_SECONDS: Final = 0.02


@dataclass(frozen=True, slots=True)
class Limits:
    """How much a worker does at once, and how long it lets handlers end when it has to stop."""

    slots: int = 200
    threads: int = 16
    drain_seconds: float = 20.0


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
        push: Callable[[], tuple[PushEndpoints, Deliverer]] | None = None,
        accounts: Callable[[Consume], AccountsDirectory] | None = None,
        id: str = "",
    ) -> None:
        """`push` gives what it takes to deliver to endpoints; `accounts` the directory of streams that others have."""
        self.id = id or f"{random.getrandbits(48):012x}"
        self._app = app
        self._subscribers = {subscriber.name: subscriber for subscriber in subscribers}
        self._tenants = tenants
        self._plans = plans
        self._limits = limits or Limits()
        self._services = Services(pool)
        self._roll = Roll(lanes.app, broker, self.id, self._introduce, replicas=replicas)
        self._feeds = Feeds("tenantry-worker")
        self._is_leaving = False
        self._loops: list[asyncio.Task[None]] = []
        self._handlings: dict[str, Handling] = {}
        letters = DeadLetters(pool)
        self._demand = Demand(self._subscribers.values(), roster, lanes)
        self._keeper = Keeper(
            self._demand,
            self._roll,
            self._feeds,
            letters,
            drain_seconds=self._limits.drain_seconds,
            dispatch_of=self._dispatch_of,
            is_paused=lambda partition: self._attendant.is_paused(partition),
            closed=lambda holding: self._replays.drop(holding),
        )
        self._make_push = push
        self._pushing: Pushing | None = None
        self._make_accounts = accounts if self._subscribers else None
        self._accounts: AccountsDirectory | None = None
        self._replays = Replays(self.holdings, pool)
        self._attendant = Attendant(self.holdings, self._services, letters, self._replays)

    @property
    def holdings(self) -> dict[Partition, Holding]:
        return self._keeper.holdings

    @property
    def members(self) -> list[Member]:
        """All workers that are there."""
        return self._roll.members

    async def start(self) -> None:
        limits = self._limits
        self._threads = ThreadPoolExecutor(limits.threads, thread_name_prefix="handler")
        # Handlers that block have a dispatch of their own: there are only so many threads.
        self._dispatch = Dispatch(limits.slots, self._handle)
        self._blocking = Dispatch(limits.threads, self._handle)
        for subscriber in self._subscribers.values():
            self._demand.since[subscriber.name] = await self._services.register(self._app, subscriber)
        if self._make_push is not None:
            self._pushing = Pushing(*self._make_push(), self._demand)
            await self._pushing.start()
        if self._make_accounts is not None:
            # With threads of their own: theirs are not counted by the dispatch for those that block.
            self._foreign_threads = ThreadPoolExecutor(limits.threads, thread_name_prefix="foreign handler")
            foreign = ForeignAccounts(
                self._subscribers.values(), self._demand, self._foreign_threads, self._keeper.has_given_back
            )
            self._accounts = self._make_accounts(foreign.consume)
            await self._accounts.start()
        await self._roll.start()
        await self._attend()
        self._loops = [
            asyncio.create_task(_repeat(self._keeper.look, LOOK_SECONDS, self._keeper.look_now), name="worker look"),
            asyncio.create_task(_repeat(self._attend, ATTEND_SECONDS, self._roll.nudged), name="worker attend"),
            asyncio.create_task(self._keep(), name="worker keep"),
            asyncio.create_task(_repeat(self._stay_registered, SEEN_SECONDS, asyncio.Event()), name="worker register"),
            asyncio.create_task(self._follow_roll(), name="worker roll"),
        ]
        if self._accounts is not None:
            self._loops.append(asyncio.create_task(self._accounts.run(), name="worker accounts"))

    async def run(self) -> None:
        watching = asyncio.ensure_future(self._roll.run())
        done, _ = await asyncio.wait([*self._loops, watching], return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()

    async def stop(self) -> None:
        """Hand over everything, each tenant as soon as what runs of it has ended."""
        self._is_leaving = True
        await end(self._loops)
        if self._roll.is_current:
            await self._roll.introduce()
            await self._keeper.give_all_back()
            await self._roll.leave()
        if self._accounts is not None:
            await self._accounts.stop()
            self._foreign_threads.shutdown(wait=False, cancel_futures=True)
        if self._pushing is not None:
            await self._pushing.stop()
        await self._dispatch.close()
        await self._blocking.close()
        await self._feeds.close()
        await self._roll.stop()
        self._threads.shutdown(wait=False, cancel_futures=True)

    def kill(self) -> None:
        self._keeper.kill()
        for task in self._loops:
            task.cancel()

    def load(self) -> dict[str, Any]:
        """What it has to do, and how it copes."""
        holdings = self.holdings.values()
        tally = sum((holding.tally for holding in holdings), start=self._keeper.past)
        # What is paused waits for no worker.
        lags = [holding.lag for holding in holdings if holding.is_flowing]
        return {
            "partitions": len(holdings),
            "behind": sum(lag > 0 for lag in lags),
            "slots": self._slots,
            "running": sum(len(holding.running) for holding in holdings),
            "lag": sum(lags),
            "handled": tally.handled,
            "failed": tally.failed,
            "busy_seconds": round(tally.busy_seconds, 3),
            "cpu_seconds": round(time.process_time(), 3),
        }

    def _introduce(self) -> Member:
        return Member(
            id=self.id,
            app=self._app,
            services=self._capabilities,
            tenants=self._tenants,
            plans=self._plans,
            host=HOST,
            pid=os.getpid(),
            is_leaving=self._is_leaving,
            load=self.load(),
        )

    @property
    def _capabilities(self) -> frozenset[str]:
        more = [(self._make_push, PUSH), (self._make_accounts, ACCOUNTS)]
        return frozenset(self._subscribers) | {name for is_there, name in more if is_there is not None}

    async def _attend(self) -> None:
        await self._attendant.attend()
        if self._pushing is not None:
            try:
                await self._pushing.attend()
            except DATABASE_AWAY as problem:
                AWAY.emit(error=problem)

    @property
    def _slots(self) -> int:
        """How many handlers can run at once, of those that there are."""
        kinds = {subscriber.is_async for subscriber in self._subscribers.values()} or {True}
        return sum(self._limits.slots if is_async else self._limits.threads for is_async in kinds)

    async def _follow_roll(self) -> None:
        while True:
            await self._roll.changed.wait()
            self._roll.changed.clear()
            self._keeper.look_now.set()

    async def _keep(self) -> None:
        """What has to be done again and again for all that is held."""
        while True:
            await asyncio.sleep(KEEP_SECONDS)
            moment = asyncio.get_running_loop().time()
            for holding in list(self.holdings.values()):
                holding.keep(moment)

    async def _stay_registered(self) -> None:
        with suppress(*DATABASE_AWAY):
            await self._services.keep(self._app, list(self._subscribers))
        await self._feeds.close_unused()

    def _dispatch_of(self, subscriber: Subscriber) -> Dispatch:
        return self._dispatch if subscriber.is_async else self._blocking

    async def _handle(self, holding: Holding, parcels: list[Parcel]) -> None:
        handling = self._handlings.get(holding.subscriber.name)
        if handling is None or handling.subscriber is not holding.subscriber:
            handling = Handling(holding.subscriber, self.id, self._threads)
            self._handlings[holding.subscriber.name] = handling
        try:
            await handling.handle(holding, parcels)
        except Exception as problem:
            # Nothing that can go wrong is known to end here; should it, no event is lost by it.
            NOT_HANDLED.emit(tenant=holding.tenant, service=holding.subscriber.name, error=problem)
            for parcel in parcels:
                parcel.source.put_off(parcel, UNFORESEEN_SECONDS)


async def _repeat(act: Callable[[], Awaitable[None]], seconds: float, woken: asyncio.Event) -> None:
    """Again and again, and soon when it is woken: what comes together is looked at together."""
    while True:
        await act()
        await asyncio.sleep(TOGETHER_SECONDS)
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await woken.wait()
        woken.clear()
