"""What is asked at the desks is what workers do."""

from __future__ import annotations

from tenantry.application import Context, Event, Tenantry
from tenantry.subscriptions.dead_letter_desk import DeadLetterDesk
from tenantry.subscriptions.found_letter import DeadLetterFilter, FoundLetter
from tenantry.subscriptions.job_desk import SubscriptionJobDesk
from tenantry.subscriptions.subscription_desk import SubscriptionDesk
from tests.subscriptions.working import Seen, Working, until

EVERYTHING = DeadLetterFilter()


class Shop:
    """A service that fails on some numbers, until they are put right."""

    def __init__(self, working: Working, *failing: int, after_last_retry: str) -> None:
        self.app, self.seen, self.failing = Tenantry("shop"), Seen(), set(failing)
        self.desk = DeadLetterDesk(working.administration)
        self.jobs = SubscriptionJobDesk(working.administration)

        @self.app.subscriber(
            "orders",
            retries=0,
            after_last_retry=after_last_retry,  # type: ignore[arg-type]
            key=lambda event: "odd" if event.data % 2 else "even",
        )
        async def handle(event: Event[int], context: Context) -> None:
            if event.data in self.failing:
                raise ValueError(f"cannot take {event.data}")
            self.seen.add(event, context)

    async def letters(self, count: int) -> list[FoundLetter]:
        """So many, once they are there, in the order of their events."""
        found: list[FoundLetter] = []

        async def are_there() -> bool:
            found[:] = sorted(await self.desk.page(EVERYTHING, 100), key=lambda letter: letter.sequence)
            return len(found) == count

        await until(are_there)
        return found

    async def until_ended(self, filter: DeadLetterFilter) -> tuple[int, int]:
        """Redrive, and how many were done and how many failed again."""
        (job,) = (await self.desk.redrive(filter, "test")).jobs

        async def has_ended() -> bool:
            return (await self.jobs.get(str(job.id))).has_ended

        await until(has_ended)
        ended = await self.jobs.get(str(job.id))
        assert (ended.state, ended.tenant_id, ended.total) == ("done", "acme", ended.done + ended.failed)
        return ended.done, ended.failed


async def test_a_parked_key_is_redriven_in_order_and_goes_on(working: Working) -> None:
    await working.tenant("acme")
    await working.publish("acme", 6)
    shop = Shop(working, 3, after_last_retry="park_key")
    async with working.worker(shop.app):
        parked, held = await shop.letters(2)
        await until(lambda: shop.seen.count >= 4)
        assert shop.seen.numbers["acme"] == [1, 2, 4, 6]
        assert (parked.state, held.state, parked.reason) == ("parked", "held", "ValueError: cannot take 3")
        assert await shop.until_ended(DeadLetterFilter(ids=(held.id,))) == (0, 2)
        assert len(await shop.letters(2)) == 2
        shop.failing.clear()
        assert await shop.until_ended(DeadLetterFilter(ids=(held.id,))) == (2, 0)
        await shop.letters(0)
        await working.publish("acme", 1)
        await until(lambda: shop.seen.count >= 7)
    assert shop.seen.numbers["acme"] == [1, 2, 4, 6, 3, 5, 7]


async def test_a_stopped_tenant_goes_on_after_what_stopped_it_is_discarded(working: Working) -> None:
    for name in ("acme", "globex"):
        await working.tenant(name)
        await working.publish(name, 4)
    shop = Shop(working, 2, after_last_retry="stop")
    async with working.worker(shop.app):
        first, second = await shop.letters(2)
        assert (first.state, second.state) == ("stopped", "stopped")
        outcome = await shop.desk.discard(DeadLetterFilter(tenant="acme"), "test")
        assert (outcome.discarded, [job.total for job in outcome.jobs]) == (0, [1])
        await until(lambda: shop.seen.numbers["acme"] == [1, 3, 4])
        (left,) = await shop.letters(1)
    assert left.tenant_id == "globex"
    assert shop.seen.numbers["globex"] == [1]


async def test_a_paused_tenant_waits_and_others_do_not(working: Working) -> None:
    shop = Shop(working, after_last_retry="skip")
    services = SubscriptionDesk(working.administration)
    for name in ("acme", "globex"):
        await working.tenant(name)
    async with working.worker(shop.app):
        await working.publish("acme", 1)
        await until(lambda: shop.seen.numbers["acme"] == [1])
    await services.pause("orders", "acme", "test")
    for name in ("acme", "globex"):
        await working.publish(name, 2)
    async with working.worker(shop.app):
        await until(lambda: shop.seen.numbers["globex"] == [1, 2])
        assert shop.seen.numbers["acme"] == [1]
        await services.resume("orders", "acme", "test")
        await until(lambda: shop.seen.numbers["acme"] == [1, 2, 3])
    (found,) = await services.all()
    assert (found.service, found.app, found.after_last_retry, found.pauses) == ("orders", "shop", "skip", [])
    lags = {lag.tenant_id: lag for lag in await services.lag("orders")}
    assert (lags["acme"].pending, lags["acme"].last_sequence, lags["acme"].ack_floor) == (0, 3, 3)
