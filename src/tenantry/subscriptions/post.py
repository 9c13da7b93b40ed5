"""A post: a process of a worker that is to be there, and is started again when it dies; later, if it dies at once."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from tenantry.telemetry import signal

STARTED = signal("subscriptions.process_started", "The process of a worker was started.", "post", "pid")
DIED = signal(
    "subscriptions.process_died",
    "The process of a worker ended though nobody asked it to; it is started again after a pause.",
    "post",
    "pid",
    "code",
    "lived_seconds",
    "retry_seconds",
    "last_lines",
    level="error",
)

STEADY_SECONDS: Final = 10.0
"""Whoever lived so long did not die of how it was started."""
FIRST_PAUSE_SECONDS: Final = 0.5
LONGEST_PAUSE_SECONDS: Final = 30.0


class Process(Protocol):
    """One process of a worker, started."""

    @property
    def pid(self) -> int: ...

    @property
    def exit_code(self) -> int | None:
        """None while it runs."""

    @property
    def last_lines(self) -> list[str]:
        """What it said last."""

    async def stop(self) -> None:
        """Let it drain; returns when it has ended."""

    def kill(self) -> None: ...


Spawn = Callable[[Sequence[str]], Process]
"""Starts a worker with these flags, on the main thread."""


class Post:
    def __init__(self, name: str, spawn: Spawn, flags: Sequence[str] = ()) -> None:
        self.name = name
        self.problem = ""
        """Why nobody is there, if nobody is."""
        self._spawn = spawn
        self._flags = flags
        self._process: Process | None = None
        self._started_at = 0.0
        self._due_at = 0.0
        self._pause = FIRST_PAUSE_SECONDS

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process and self._process.exit_code is None else None

    def care(self) -> None:
        """Start it if it is due, and notice if it has died."""
        moment = time.monotonic()
        if self._process is not None and self._process.exit_code is not None:
            self._mourn(self._process, moment)
        if self._process is None and moment >= self._due_at:
            self._process = self._spawn(self._flags)
            self._started_at = moment
            STARTED.emit(post=self.name, pid=self._process.pid)
        elif self.pid and moment - self._started_at > STEADY_SECONDS:
            self._pause = FIRST_PAUSE_SECONDS
            self.problem = ""

    async def stop(self) -> None:
        if self._process is not None:
            await self._process.stop()

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()

    def _mourn(self, process: Process, moment: float) -> None:
        lived, self._process = moment - self._started_at, None
        pause = 0.0
        if lived < STEADY_SECONDS:
            pause, self._pause = self._pause, min(2 * self._pause, LONGEST_PAUSE_SECONDS)
        self._due_at = moment + pause
        last = process.last_lines
        self.problem = f"its process ended with exit code {process.exit_code}" + (f": {last[-1]}" if last else "")
        DIED.emit(
            post=self.name,
            pid=process.pid,
            code=process.exit_code,
            lived_seconds=round(lived, 3),
            retry_seconds=pause,
            last_lines=last,
        )
