"""How fast a backlog is handled, counted in the same way by whatever handles it."""

from __future__ import annotations

import asyncio
import time
from typing import Final

import msgspec

COUNTED: Final = (0.1, 0.7)
"""Which part of the backlog is counted. In the first tenth whoever handles it gets going; of the last events many have
been fetched long before, and are handled faster than any could go on."""


class Drained(msgspec.Struct):
    """What a process says of itself when it has handled everything."""

    events: int
    seconds: float

    @property
    def rate(self) -> float:
        return self.events / self.seconds


class Drain:
    """Counts what is handled."""

    def __init__(self, total: int) -> None:
        self._total = total
        self._first, self._last = (round(part * total) for part in COUNTED)
        self._handled = 0
        self._began = self._ended = 0.0
        self._done = asyncio.Event()

    def count(self) -> None:
        self._handled += 1
        if self._handled == self._first:
            self._began = time.perf_counter()
        elif self._handled == self._last:
            self._ended = time.perf_counter()
        elif self._handled == self._total:
            self._done.set()

    async def until_done(self) -> Drained:
        await self._done.wait()
        return Drained(self._last - self._first, self._ended - self._began)
