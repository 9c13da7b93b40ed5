"""Dead letters of one partition that are handled again, in their order."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from uuid import UUID

from tenantry.service import end
from tenantry.subscriptions.database import AWAY, DATABASE_AWAY
from tenantry.subscriptions.dead_letters import DeadLetter, DeadLetters, Death
from tenantry.subscriptions.parcel import Parcel


class Redriving:
    """A source. What came of a letter is written down in the order in which it came about."""

    is_replay = True
    may_retry = False

    def __init__(
        self,
        letters: DeadLetters,
        settling: asyncio.Lock,
        *,
        offer: Callable[[], None],
        settled: Callable[[DeadLetter, int], Awaitable[None]],
    ) -> None:
        self._letters = letters
        self._settling = settling
        self._offer = offer
        self._settled = settled
        self._ready: deque[DeadLetter] = deque()
        self._known: dict[UUID, DeadLetter] = {}
        self._running: dict[Parcel, DeadLetter] = {}
        self._outcomes: asyncio.Queue[tuple[DeadLetter, Death | None]] = asyncio.Queue()
        self._writing: asyncio.Task[None] | None = None

    @property
    def waiting(self) -> int:
        return len(self._ready)

    def job_of(self, key: str) -> UUID | None:
        """The job that handles what has this key, if one does."""
        return next((letter.job for letter in self._known.values() if letter.key == key), None)

    def add(self, letters: list[DeadLetter]) -> None:
        for letter in letters:
            if letter.id not in self._known:
                self._known[letter.id] = letter
                if letter.kind == "discard":
                    self._outcome(letter, None)
                else:
                    self._ready.append(letter)
        if self._ready:
            self._offer()

    def next(self) -> Parcel:
        letter = self._ready.popleft()
        parcel = Parcel(letter.message, self, asyncio.get_running_loop().time())
        parcel.is_alone = True
        self._running[parcel] = letter
        return parcel

    def put_first(self, parcels: list[Parcel]) -> None:
        self._ready.extendleft(self._running.pop(parcel) for parcel in reversed(parcels))

    def done(self, parcel: Parcel) -> None:
        self._outcome(self._running.pop(parcel), None)

    def put_off(self, parcel: Parcel, seconds: float) -> None:  # noqa: ARG002
        self.return_unhandled(parcel)

    def return_unhandled(self, parcel: Parcel) -> None:
        """Whoever looks next finds it still asked for."""
        letter = self._running.pop(parcel, None)
        if letter is not None:
            self._known.pop(letter.id, None)

    async def bury(self, parcel: Parcel, death: Death) -> None:
        letter = self._running.pop(parcel)
        if letter.state != "dead":
            # What was to follow it waits on.
            for other in [each for each in self._ready if each.key == letter.key]:
                self._ready.remove(other)
                del self._known[other.id]
        self._outcome(letter, death)

    async def until_written(self) -> None:
        """Returns when what has come of letters so far is written down."""
        if self._writing is not None:
            await asyncio.wait([self._writing])

    async def close(self) -> None:
        self._ready.clear()
        if self._writing is not None:
            await end([self._writing])

    def _outcome(self, letter: DeadLetter, death: Death | None) -> None:
        self._outcomes.put_nowait((letter, death))
        if self._writing is None or self._writing.done():
            self._writing = asyncio.create_task(self._write(), name="redrive outcomes")

    async def _write(self) -> None:
        while not self._outcomes.empty():
            letter, death = await self._outcomes.get()
            async with self._settling:
                try:
                    if death is None:
                        await self._settled(letter, await self._letters.settle(letter))
                    else:
                        await self._letters.failed_again(letter, death)
                except DATABASE_AWAY as problem:
                    # The letter stays as it was: it is asked for again, and handled once more.
                    AWAY.emit(error=problem)
                finally:
                    self._known.pop(letter.id, None)
