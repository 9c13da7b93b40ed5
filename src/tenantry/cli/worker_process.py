"""One worker of a fleet as a process: what it says is said here, too, and its last lines are kept."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tenantry.cli.child_environment import child_command, child_environment
from tenantry.embedded.child import LOG_TAIL, STOP_SECONDS, Child
from tenantry.embedded.platform import EmbeddedPlatform

LAST_LINES_SECONDS: Final = 1.0


class WorkerProcess:
    def __init__(self, platform: EmbeddedPlatform, flags: Sequence[str] = ()) -> None:
        """Starts it. Call it on the main thread, in a running loop."""
        stop_seconds = STOP_SECONDS + platform.settings.worker_drain_seconds
        self._child = Child("worker", Path.cwd(), signal.SIGTERM, stop_seconds=stop_seconds)
        self._lines = _Lines()
        self._ended_at = 0.0
        reading, writing = os.pipe()
        try:
            self._child.spawn(child_command("serve", "worker", *flags), child_environment(platform), output=writing)
        finally:
            os.close(writing)
        loop = asyncio.get_running_loop()
        self._following = asyncio.ensure_future(
            loop.connect_read_pipe(lambda: self._lines, os.fdopen(reading, "rb", buffering=0))
        )

    @property
    def pid(self) -> int:
        assert self._child.process is not None
        return self._child.process.pid

    @property
    def exit_code(self) -> int | None:
        assert self._child.process is not None
        code = self._child.process.poll()
        if code is None or self._lines.are_over:
            return code
        # What it said last is still to be read, unless a process that it started keeps the pipe open.
        self._ended_at = self._ended_at or time.monotonic()
        return code if time.monotonic() > self._ended_at + LAST_LINES_SECONDS else None

    @property
    def last_lines(self) -> list[str]:
        return list(self._lines.last)

    async def stop(self) -> None:
        await self._child.stop()

    def kill(self) -> None:
        self._child.kill()


class _Lines(asyncio.Protocol):
    """Passes whole lines on to standard error, so that those of several workers do not mix."""

    def __init__(self) -> None:
        self.last: deque[str] = deque(maxlen=LOG_TAIL)
        self.are_over = False
        self._begun = b""

    def data_received(self, data: bytes) -> None:
        *lines, self._begun = (self._begun + data).split(b"\n")
        self._say(lines)

    def connection_lost(self, _: Exception | None) -> None:
        self._say([self._begun] if self._begun else [])
        self.are_over = True

    def _say(self, lines: list[bytes]) -> None:
        for line in lines:
            text = line.decode(errors="replace")
            self.last.append(text)
            print(text, file=sys.stderr, flush=True)
