"""Spares an endpoint that fails: after a few failures in a row it is left alone for a while, then tried once.

Pure: it is told what time it is, in seconds of any clock that only goes forward.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection
from typing import Final
from uuid import UUID

FAILURES: Final = 5
FIRST_PAUSE: Final = 5.0
LONGEST_PAUSE: Final = 300.0


class Breaker:
    """Closed: all may pass. Open: nobody. Half open, after a pause: one, and then what became of it decides."""

    def __init__(
        self,
        *,
        failures: int = FAILURES,
        first_pause: float = FIRST_PAUSE,
        longest_pause: float = LONGEST_PAUSE,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self._most = failures
        self._first_pause = first_pause
        self._longest_pause = longest_pause
        self._chance = chance
        self._failures = 0
        self._pause = 0.0
        self._opens_at: float | None = None
        self._is_trying = False

    @property
    def opens_at(self) -> float | None:
        """When the next attempt may pass; none: now, and any number of them."""
        return self._opens_at

    def wait_seconds(self, now: float) -> float:
        """How long to wait before it is worth asking again."""
        return 0.0 if self._opens_at is None else max(0.0, self._opens_at - now)

    def allows(self, now: float) -> bool:
        """Whether an attempt may begin. Ask only to begin one: after a pause, whoever asks first makes the trial."""
        if self._opens_at is None:
            return True
        if now < self._opens_at:
            return False
        # Should nobody ever say what became of the trial, there is another one after as long a pause.
        self._opens_at = now + self._pause
        self._is_trying = True
        return True

    def succeeded(self) -> None:
        self._failures = 0
        self._pause = 0.0
        self._opens_at = None
        self._is_trying = False

    def failed(self, now: float) -> None:
        if self._opens_at is not None and not self._is_trying:
            # It began before the pause, and says nothing new.
            return
        self._failures += 1
        if self._is_trying or self._failures >= self._most:
            self._is_trying = False
            self._pause = min(self._pause * 2 or self._first_pause, self._longest_pause)
            # Half of it by chance, so that many workers do not come back at the same moment.
            self._opens_at = now + self._pause * (0.5 + self._chance() / 2)


class Breakers:
    """One breaker for each endpoint."""

    def __init__(self, make: Callable[[], Breaker] = Breaker) -> None:
        self._make = make
        self._breakers: dict[UUID, Breaker] = {}

    def of(self, endpoint: UUID) -> Breaker:
        if endpoint not in self._breakers:
            self._breakers[endpoint] = self._make()
        return self._breakers[endpoint]

    def keep(self, endpoints: Collection[UUID]) -> None:
        """Forget those of all other endpoints."""
        self._breakers = {id: each for id, each in self._breakers.items() if id in endpoints}
