"""A worker: it claims its share of all tenants, hands their events to handlers, and gives back what is not its own."""

from __future__ import annotations

import asyncio
import random
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
from tenantry.subscriptions.attendant import Attendant
from tenantry.subscriptions.dead_letters import DeadLetters
from tenantry.subscriptions.dispatch import Dispatch
from tenantry.subscriptions.feeds import Feeds
from tenantry.subscriptions.handling import Handling
from tenantry.subscriptions.holding import Holding
from tenantry.subscriptions.keeper import DATABASE_AWAY, Keeper
from tenantry.subscriptions.parcel import Parcel
from tenantry.subscriptions.replaying import Replays
from tenantry.subscriptions.roll import Roll
from tenantry.subscriptions.services import Services
from tenantry.subscriptions.spreading import Member, Partition
from tenantry.tenants.lanes import Lanes
from tenantry.tenants.roster import Roster

LOOK_SECONDS: Final = 0.5
ATTEND_SECONDS: Final = 1.0
KEEP_SECONDS: Final = 0.5
SEEN_SECONDS: Final = 10.0


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
        id: str = "",
    ) -> None:
        self.id = id or f"{random.getrandbits(48):012x}"
        self._app = app
        self._subscribers = {subscriber.name: subscriber for subscriber in subscribers}
        self._tenants = tenants
        self._plans = plans
        self._limits = limits or Limits()
        self._services = Services(pool)
        self._roll = Roll(lanes.app, broker, replicas, self._introduce)
        self._feeds = Feeds("tenantry-worker")
        self._is_leaving = False
        self._loops: list[asyncio.Task[None]] = []
        letters = DeadLetters(pool)
        self._keeper = Keeper(
            self._subscribers,
            self._roll,
            self._feeds,
            letters,
            roster=roster,
            lanes=lanes,
            drain_seconds=self._limits.drain_seconds,
            dispatch_of=self._dispatch_of,
            is_paused=lambda partition: self._attendant.is_paused(partition),
            closed=lambda holding: self._replays.drop(holding),
        )
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
        self._handlings = {name: Handling(each, self.id, self._threads) for name, each in self._subscribers.items()}
        # Handlers that block have a dispatch of their own: there are only so many threads.
        self._dispatch = Dispatch(limits.slots, self._handle)
        self._blocking = Dispatch(limits.threads, self._handle)
        for subscriber in self._subscribers.values():
            self._keeper.since[subscriber.name] = await self._services.register(self._app, subscriber)
        await self._roll.start()
        await self._attendant.attend()
        self._loops = [
            asyncio.create_task(_repeat(self._keeper.look, LOOK_SECONDS, self._keeper.look_now), name="worker look"),
            asyncio.create_task(_repeat(self._attendant.attend, ATTEND_SECONDS, self._roll.nudged), name="attendant"),
            asyncio.create_task(self._keep(), name="worker keep"),
            asyncio.create_task(self._follow_roll(), name="worker roll"),
        ]

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
        return {
            "partitions": len(holdings),
            "slots": self._limits.slots,
            "running": sum(len(holding.running) for holding in holdings),
            "lag": sum(holding.lag for holding in holdings),
            "handled": sum(holding.handled for holding in holdings),
            "busy_seconds": round(sum(holding.busy_seconds for holding in holdings), 3),
            "cpu_seconds": round(time.process_time(), 3),
        }

    def _introduce(self) -> Member:
        return Member(
            id=self.id,
            app=self._app,
            services=frozenset(self._subscribers),
            tenants=self._tenants,
            plans=self._plans,
            is_leaving=self._is_leaving,
            load=self.load(),
        )

    async def _follow_roll(self) -> None:
        while True:
            await self._roll.changed.wait()
            self._roll.changed.clear()
            self._keeper.look_now.set()

    async def _keep(self) -> None:
        """What has to be done again and again for all that is held."""
        seen_at = 0.0
        while True:
            await asyncio.sleep(KEEP_SECONDS)
            moment = asyncio.get_running_loop().time()
            for holding in self.holdings.values():
                holding.keep(moment)
            if moment - seen_at > SEEN_SECONDS:
                seen_at = moment
                with suppress(*DATABASE_AWAY):
                    await self._services.keep(self._app, list(self._subscribers))
                await self._feeds.close_unused()

    def _dispatch_of(self, subscriber: Subscriber) -> Dispatch:
        return self._dispatch if subscriber.is_async else self._blocking

    async def _handle(self, holding: Holding, parcels: list[Parcel]) -> None:
        await self._handlings[holding.subscriber.name].handle(holding, parcels)


async def _repeat(act: Callable[[], Awaitable[None]], seconds: float, woken: asyncio.Event) -> None:
    """Again and again, and at once when it is woken."""
    while True:
        await act()
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await woken.wait()
        woken.clear()
