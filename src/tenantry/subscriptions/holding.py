"""A partition that this worker holds: what is to be handled of it, in which order, and what holds it up."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass

from tenantry.errors import BrokerError
from tenantry.subscriptions.dead_letters import Blocked, DeadLetter, DeadLetters, Death
from tenantry.subscriptions.demand import Wanted
from tenantry.subscriptions.dispatch import Work
from tenantry.subscriptions.intake import Burial, Intake
from tenantry.subscriptions.parcel import Parcel, Source
from tenantry.subscriptions.redriving import Redriving
from tenantry.subscriptions.spreading import Partition


@dataclass(slots=True)
class Tally:
    """What was done."""

    handled: int = 0
    failed: int = 0
    busy_seconds: float = 0.0

    def __add__(self, other: Tally) -> Tally:
        return Tally(self.handled + other.handled, self.failed + other.failed, self.busy_seconds + other.busy_seconds)


class Holding:
    """Work for the dispatch, of one tenant and service."""

    def __init__(
        self,
        partition: Partition,
        wanted: Wanted,
        fence: int,
        *,
        letters: DeadLetters,
        offer: Callable[[Work], None],
        is_current: Callable[[], bool],
    ) -> None:
        self.partition = partition
        self.tenant = partition.tenant
        self.fence = fence
        self.handled: dict[int, None] = {}
        """The last sequences that were handled, through whichever consumer."""
        self.wanted = wanted
        self.become(wanted)
        self.intake: Intake | None = None
        self.is_current = is_current
        """Whether this worker may act on it."""
        self._settling = asyncio.Lock()
        """An event that is to wait for a letter, and the letter that it waits for, are seen to one after the other."""
        self.redriving = Redriving(letters, self._settling, offer=self._offer_own, settled=self._letter_settled)
        self.replays: list[Intake] = []
        self.parked: dict[str, int] = {}
        """Keys whose events are held back, and how many there are."""
        self.stopped_at: int | None = None
        self.is_paused = False
        self.is_closing = False
        self.is_resting = False
        """Nothing is begun for a while."""
        self.running: set[Parcel] = set()
        self.tally = Tally()
        self._letters = letters
        self._offer = offer
        self._flowing = asyncio.Lock()
        self._changing: set[asyncio.Task[None]] = set()
        self._turn = 0
        self._idle = asyncio.Event()
        self._idle.set()

    def become(self, wanted: Wanted) -> None:
        """What it is for."""
        if self.wanted.identity != wanted.identity:
            self.handled.clear()
        self.wanted = wanted
        self.subscriber = wanted.subscriber
        self.lane = wanted.lane
        self._limit = 1 if wanted.subscriber.is_fifo else wanted.subscriber.in_flight

    def __repr__(self) -> str:
        return f"<Holding {self.partition}>"

    def block(self, blocked: Blocked | None) -> None:
        """What was found to wait when it was taken over."""
        if blocked is not None:
            self.parked = dict(blocked.keys)
            self.stopped_at = blocked.stopped_at

    @property
    def weight(self) -> float:
        return self.wanted.weight

    @property
    def is_flowing(self) -> bool:
        """Whether new events are taken in."""
        return not self.is_paused and not self.is_closing and self.stopped_at is None

    def change_flow(self) -> None:
        """What it is to do has changed."""
        task = asyncio.create_task(self._change_flow(), name=f"flow of {self.partition}")
        self._changing.add(task)
        task.add_done_callback(self._changing.discard)

    async def _change_flow(self) -> None:
        async with self._flowing:
            intake = self.intake
            if intake is None:
                return
            # What the broker does not do now is looked at again every now and then.
            with suppress(BrokerError):
                if self.is_flowing:
                    await intake.resume()
                else:
                    await intake.hush()

    def keep(self, moment: float) -> None:
        """What has to be done again and again."""
        for intake in (self.intake, *self.replays):
            if intake is not None:
                intake.keep(moment)
        if self.intake is not None and self.is_flowing == self.intake.is_hushed and not self._changing:
            self.change_flow()
        if self.is_ready:
            # Whatever made it so, nobody may have told the dispatch.
            self._offer(self)

    @property
    def lag(self) -> int:
        return self.intake.lag if self.intake else 0

    # -- what the dispatch asks -------------------------------------------------------------------------------------

    @property
    def is_ready(self) -> bool:
        if self.is_paused or self.is_closing or self.is_resting or len(self.running) >= self._limit:
            return False
        return any(source.waiting for source in self._sources())

    def next(self) -> list[Parcel]:
        sources = [source for source in self._sources() if source.waiting]
        self._turn += 1
        source = sources[self._turn % len(sources)]
        parcels = [source.next()]
        most = self.subscriber.batch
        if most > 1 and not parcels[0].is_alone:
            if not self.subscriber.is_fifo:
                most = min(most, self._limit - len(self.running))
            while len(parcels) < most and source.waiting:
                parcels.append(source.next())
        self.running.update(parcels)
        self._idle.clear()
        return parcels

    def finished(self, parcels: list[Parcel]) -> None:
        self.running.difference_update(parcels)
        if not self.running:
            self._idle.set()

    def _sources(self) -> list[Source]:
        if self.stopped_at is not None:
            return [self.redriving]
        live = [self.intake] if self.intake else []
        return [*live, self.redriving, *self.replays] if self.replays or self.redriving.waiting else [*live]

    async def hush(self) -> None:
        """Take in nothing more; what has not been begun goes back."""
        for intake in (self.intake, *self.replays):
            if intake is not None:
                await intake.hush()

    async def until_idle(self) -> None:
        await self._idle.wait()

    def rest(self, seconds: float) -> None:
        """Begin nothing for so long."""

        def wake() -> None:
            self.is_resting = False
            self._offer(self)

        if not self.is_resting:
            self.is_resting = True
            asyncio.get_running_loop().call_later(seconds, wake)

    @asynccontextmanager
    async def standing_still(self) -> AsyncIterator[None]:
        """Nothing is taken in or handled meanwhile."""
        was_paused, self.is_paused = self.is_paused, True
        try:
            async with self._flowing:
                if self.intake is not None:
                    await self.intake.hush()
                await self.until_idle()
                yield
        finally:
            self.is_paused = was_paused
            self.change_flow()

    # -- what becomes of events -------------------------------------------------------------------------------------

    async def bury(self, parcel: Parcel, death: Death) -> Burial:
        async with self._settling:
            if death.state == "held" and death.key not in self.parked:
                return "free"
            job = self.redriving.job_of(death.key) if death.state == "held" and death.key else None
            await self._letters.bury(self.partition, self.lane.channel, parcel, death, job)
            if death.key is not None and death.state != "dead":
                self.parked[death.key] = self.parked.get(death.key, 0) + 1
        if death.state == "stopped":
            self.stopped_at = parcel.sequence
            self.change_flow()
            return "stopped"
        return "buried"

    async def _letter_settled(self, letter: DeadLetter, left: int) -> None:
        if letter.state == "stopped":
            # It comes once more, as nobody has acknowledged it, and is then known.
            self.handled[letter.message.sequence] = None
            self.stopped_at = None
            self.change_flow()
        elif letter.key is not None and not left:
            self.parked.pop(letter.key, None)

    def _offer_own(self) -> None:
        self._offer(self)
