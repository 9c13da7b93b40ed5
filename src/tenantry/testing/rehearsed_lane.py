"""The lane of a rehearsal: what would come from a consumer of JetStream, at once and in memory."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable

from tenantry.application import Subscriber
from tenantry.nats.feed import Handed
from tenantry.subscriptions.dead_letters import Death
from tenantry.subscriptions.intake import Burial
from tenantry.subscriptions.parcel import Parcel
from tenantry.testing.outcome import Outcome


class RehearsedLane:
    """A source of parcels, which says of each in its outcome what became of it."""

    is_replay = False
    may_retry = True
    is_hushed = False

    def __init__(self, subscriber: Subscriber, bury: Callable[[Parcel, Death], Awaitable[Burial]]) -> None:
        self.outcomes: dict[int, Outcome] = {}
        """By sequence."""
        self._subscriber = subscriber
        self._bury = bury
        self._ready: deque[Parcel] = deque()

    def add(self, message: Handed, outcome: Outcome) -> None:
        self.outcomes[message.sequence] = outcome
        self._ready.append(self._parcel(message))

    @property
    def waiting(self) -> int:
        return len(self._ready)

    def mark_waiting(self) -> None:
        """What is left now is held back."""
        left = {parcel.sequence for parcel in self._ready}
        for sequence, outcome in self.outcomes.items():
            outcome.waits = sequence in left and not outcome.handled

    def next(self) -> Parcel:
        return self._ready.popleft()

    def put_first(self, parcels: list[Parcel]) -> None:
        self._ready.extendleft(reversed(parcels))

    def done(self, parcel: Parcel) -> None:
        outcome = self.outcomes[parcel.sequence]
        # One that is for another part, or of another type, is done without having been tried.
        outcome.handled = outcome.handled or outcome.attempts > 0

    def put_off(self, parcel: Parcel, seconds: float) -> None:
        """It comes back at once, and as before: in order nothing passes it."""
        self._note_timeout(parcel)
        self.outcomes[parcel.sequence].pauses.append(seconds)
        again = self._parcel(parcel.message._replace(deliveries=parcel.attempt + 1))
        if self._subscriber.is_fifo:
            self._ready.appendleft(again)
        else:
            self._ready.append(again)

    def return_unhandled(self, parcel: Parcel) -> None:
        """It would go to another worker, and there is none."""

    async def bury(self, parcel: Parcel, death: Death) -> None:
        self._note_timeout(parcel)
        await self._bury(parcel, death)

    async def hush(self) -> None:
        self.is_hushed = True

    async def resume(self) -> None:
        self.is_hushed = False

    def _note_timeout(self, parcel: Parcel) -> None:
        """Of a handler that took too long nobody else sees an error."""
        outcome, seconds = self.outcomes[parcel.sequence], self._subscriber.timeout
        if outcome.error is None and outcome.attempts and seconds is not None:
            outcome.error = TimeoutError(f"the handler took longer than {seconds:g} s")

    def _parcel(self, message: Handed) -> Parcel:
        return Parcel(message, self, asyncio.get_running_loop().time())
