"""Fair dispatch: shares by weight, room for everybody, and nobody forgotten."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest

from tenantry.subscriptions.dispatch import Dispatch
from tests.subscriptions.working import until


class Backlog:
    """So many events of a tenant, of which so many may run at once."""

    def __init__(self, tenant: str, count: int, *, weight: float = 1, limit: int = 1, together: int = 1) -> None:
        self.tenant = tenant
        self.weight = weight
        self.left = count
        self.running = 0
        self._limit = limit
        self._together = together

    @property
    def is_ready(self) -> bool:
        return self.left > 0 and self.running < self._limit

    def next(self) -> list[Any]:
        taken = min(self._together, self.left)
        self.left -= taken
        self.running += 1
        return [None] * taken

    def finished(self, parcels: list[Any]) -> None:
        self.running -= 1


async def drain(slots: int, *backlogs: Backlog, most: int = 10**9) -> list[str]:
    """Who was handled, in order."""
    order: list[str] = []
    enough = asyncio.Event()

    async def handle(work: Backlog, parcels: list[Any]) -> None:
        order.extend([work.tenant] * len(parcels))
        await asyncio.sleep(0)
        if len(order) >= most:
            enough.set()

    dispatch = Dispatch(slots, handle)
    for backlog in backlogs:
        dispatch.offer(backlog)
    await until(lambda: enough.is_set() or all(not each.left and not each.running for each in backlogs))
    await dispatch.close()
    return order


@pytest.mark.parametrize("slots", [1, 3, 50])
async def test_all_is_handled(slots: int) -> None:
    backlogs = [Backlog(f"t{number}", 20 + number, limit=1 + number % 3) for number in range(12)]
    counts = Counter(await drain(slots, *backlogs))
    assert counts == {f"t{number}": 20 + number for number in range(12)}


async def test_a_backlog_does_not_delay_a_single_event_of_another() -> None:
    order = await drain(1, Backlog("large", 1000, limit=100), Backlog("small", 1))
    assert order.index("small") <= 2


async def test_shares_are_by_weight() -> None:
    order = await drain(1, Backlog("heavy", 4000, weight=4), Backlog("light", 4000), most=1000)
    counts = Counter(order[:1000])
    assert 780 <= counts["heavy"] <= 820


async def test_a_batch_counts_for_as_many_events_as_it_has() -> None:
    order = await drain(1, Backlog("in batches", 4000, together=50), Backlog("one by one", 4000), most=1000)
    counts = Counter(order[:1000])
    assert 450 <= counts["in batches"] <= 550


async def test_more_services_are_not_a_larger_share() -> None:
    several = [Backlog("several", 2000) for _ in range(4)]
    order = await drain(1, *several, Backlog("one", 2000), most=1000)
    assert 480 <= Counter(order[:1000])["one"] <= 520


async def test_slow_handlers_leave_room_for_others() -> None:
    stuck, handled = asyncio.Event(), Counter[str]()

    async def handle(work: Backlog, parcels: list[Any]) -> None:
        if work.tenant.startswith("slow"):
            await stuck.wait()
        handled[work.tenant] += 1

    dispatch = Dispatch(12, handle)
    slow = [Backlog(f"slow-{number}", 1000, limit=500) for number in range(3)]
    quick = [Backlog(f"quick-{number}", 100) for number in range(20)]
    for backlog in (*slow, *quick):
        dispatch.offer(backlog)
    await until(lambda: sum(handled.values()) == 2000)
    assert dispatch.running < 12
    stuck.set()
    await until(lambda: sum(handled.values()) == 5000)
    await dispatch.close()


async def test_what_is_cut_short_ends_and_the_rest_goes_on() -> None:
    cancelled, handled = list[str](), Counter[str]()

    async def handle(work: Backlog, parcels: list[Any]) -> None:
        if work.tenant == "stuck":
            try:
                await asyncio.sleep(1000)
            except asyncio.CancelledError:
                cancelled.append(work.tenant)
                raise
        handled[work.tenant] += 1

    dispatch = Dispatch(2, handle)
    stuck, other = Backlog("stuck", 1), Backlog("other", 50)
    dispatch.offer(stuck)
    await until(lambda: stuck.running == 1)
    dispatch.cut_short(stuck)
    await until(lambda: stuck.running == 0)
    dispatch.offer(other)
    await until(lambda: handled["other"] == 50)
    assert cancelled == ["stuck"]
    await dispatch.close()
