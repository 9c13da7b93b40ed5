"""Gives events to handlers, fairly: deficit round robin over the tenants that have work, by weight.

How many handlers run at once is bounded, and so is each tenant's part of that: it may have no more than are then still
free. So however slow one is, or several are, there is always room for another.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from math import floor
from typing import Any, Final, Protocol

from tenantry.service import end
from tenantry.subscriptions.parcel import Parcel

TURN_SECONDS: Final = 0.005
"""After so long, whatever else the process has to do is done."""


class Work(Protocol):
    """Somebody's events, of which some may be handled now."""

    tenant: str

    @property
    def weight(self) -> float: ...

    @property
    def is_ready(self) -> bool: ...

    def next(self) -> list[Parcel]:
        """What is handled together; never empty if it is ready."""

    def finished(self, parcels: list[Parcel]) -> None: ...


Handle = Callable[[Any, list[Parcel]], Awaitable[None]]


class _Tenant:
    __slots__ = ("credit", "is_waiting", "running", "works")

    def __init__(self) -> None:
        self.works: deque[Work] = deque()
        self.credit = 0.0
        self.running = 0
        self.is_waiting = False


class Dispatch:
    def __init__(self, slots: int, handle: Handle) -> None:
        self.slots = slots
        self.running = 0
        self._handle = handle
        self._tenants: dict[str, _Tenant] = {}
        self._waiting: deque[_Tenant] = deque()
        self._runners: set[asyncio.Task[None]] = set()
        self._busy: dict[asyncio.Task[None], Work] = {}
        self._cut_short: set[asyncio.Task[None]] = set()
        self._idle: list[asyncio.Future[None]] = []
        self._is_waking = False
        self._loop = asyncio.get_running_loop()

    def offer(self, work: Work) -> None:
        """There is something to do."""
        tenant = self._tenants.get(work.tenant)
        if tenant is None:
            tenant = self._tenants[work.tenant] = _Tenant()
        if work not in tenant.works and work.is_ready:
            tenant.works.append(work)
        if tenant.works and not tenant.is_waiting:
            tenant.is_waiting = True
            self._waiting.append(tenant)
        if not self._is_waking and self._waiting:
            self._wake()

    def cut_short(self, work: Work) -> None:
        """End what runs of it; its handlers see that they are cancelled."""
        for runner, busy in list(self._busy.items()):
            if busy is work:
                self._cut_short.add(runner)
                runner.cancel()

    async def close(self) -> None:
        await end(list(self._runners))

    def _wake(self) -> None:
        """Let one more runner look; it wakes the next if there is more to do."""
        if self._idle:
            self._is_waking = True
            self._idle.pop().set_result(None)
        elif len(self._runners) < self.slots:
            self._is_waking = True
            runner = self._loop.create_task(self._run(), name="handler")
            self._runners.add(runner)
            runner.add_done_callback(self._runners.discard)

    async def _run(self) -> None:
        began = self._loop.time()
        me = asyncio.current_task()
        assert me is not None
        while True:
            self._is_waking = False
            taken = self._take()
            if taken is None:
                idle: asyncio.Future[None] = self._loop.create_future()
                self._idle.append(idle)
                await idle
                began = self._loop.time()
                continue
            if self._waiting:
                self._wake()
            tenant, work, parcels = taken
            self._busy[me] = work
            try:
                await self._handle(work, parcels)
            except asyncio.CancelledError:
                if me not in self._cut_short:
                    raise
            finally:
                if me in self._cut_short:
                    self._cut_short.discard(me)
                    while me.uncancel():
                        pass
                del self._busy[me]
                self.running -= 1
                tenant.running -= 1
                work.finished(parcels)
                if work.is_ready:
                    self.offer(work)
            if self._loop.time() - began > TURN_SECONDS:
                await asyncio.sleep(0)
                began = self._loop.time()

    def _take(self) -> tuple[_Tenant, Work, list[Parcel]] | None:
        if self.running >= self.slots:
            return None
        tenant = self._next_tenant()
        if tenant is None:
            return None
        work = tenant.works[0]
        tenant.works.rotate(-1)
        parcels = work.next()
        tenant.credit -= len(parcels)
        tenant.running += 1
        self.running += 1
        return tenant, work, parcels

    def _next_tenant(self) -> _Tenant | None:
        """Whose turn it is: until its credit is used up, the same one's as before."""
        waiting, free = self._waiting, self.slots - self.running
        in_debt: list[_Tenant] = []
        for _ in range(len(waiting)):
            tenant = waiting[0]
            while tenant.works and not tenant.works[0].is_ready:
                tenant.works.popleft()
            if not tenant.works:
                waiting.popleft()
                # Who has nothing to do saves nothing up.
                tenant.is_waiting, tenant.credit = False, min(tenant.credit, 0.0)
            elif tenant.running and tenant.running >= free:
                waiting.rotate(-1)
            elif tenant.credit > 0:
                return tenant
            else:
                tenant.credit += tenant.works[0].weight
                in_debt.append(tenant)
                waiting.rotate(-1)
        if not in_debt:
            return None
        chosen = max(in_debt, key=lambda tenant: tenant.credit > 0)
        if chosen.credit <= 0:
            # All have had more than their share: as many rounds as it takes until somebody may again.
            rounds = min(floor(-tenant.credit / tenant.works[0].weight) + 1 for tenant in in_debt)
            for tenant in in_debt:
                tenant.credit += rounds * tenant.works[0].weight
            chosen = max(in_debt, key=lambda tenant: tenant.credit > 0)
        while waiting[0] is not chosen:
            waiting.rotate(-1)
        return chosen
