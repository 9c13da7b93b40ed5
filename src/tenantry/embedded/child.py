"""A server as a child process: started under the launcher, watched, stopped, and never left behind."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Final

import psutil

from tenantry.errors import ServerFailed
from tenantry.telemetry import signal as declare

SERVER_STARTED = declare("embedded.server.started", "An embedded server answers.", "server", "port", "seconds")
SERVER_STOPPED = declare("embedded.server.stopped", "An embedded server has shut down.", "server", "seconds")
SERVER_KILLED = declare(
    "embedded.server.killed", "A server did not stop in time and was killed.", "server", level="warning"
)
LEFTOVER_FOUND = declare(
    "embedded.leftover.found",
    "A process of an earlier, killed platform was still there.",
    "server",
    "pid",
    level="warning",
)

# Recovery after a crash reads back what was written since the last checkpoint, and that can be much.
START_SECONDS: Final = 300.0
STOP_SECONDS: Final = 30.0
POLL_SECONDS: Final = 0.02
LOG_TAIL: Final = 15


class Child:
    """One server process and its log.

    `stop_signal` asks it to shut down cleanly, `force_signal` to end at once without leaving processes of its own.
    """

    def __init__(
        self,
        name: str,
        folder: Path,
        stop_signal: signal.Signals,
        force_signal: signal.Signals = signal.SIGKILL,
        user: str = "",
        stop_seconds: float = STOP_SECONDS,
    ) -> None:
        self.name = name
        self.log = folder / "server.log"
        self.process: subprocess.Popen[bytes] | None = None
        self._folder = folder
        self._stop_signal = stop_signal
        self._force_signal = force_signal
        self._user = user
        self._stop_seconds = stop_seconds

    def spawn(
        self, command: Sequence[str | Path], environment: Mapping[str, str] | None = None, output: int | None = None
    ) -> None:
        """Start the process. Call it on the main thread: Linux ends the child when the thread that made it ends.

        `output`: where it writes, instead of its log.
        """
        launcher: list[str | Path] = [sys.executable, "-I", "-S", Path(__file__).with_name("_launcher.py")]
        with self.log.open("ab") if output is None else nullcontext(output) as log:
            self.process = subprocess.Popen(
                [*launcher, str(os.getpid()), str(int(self._stop_signal)), self._user, *command],
                cwd=self._folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=dict(os.environ, **(environment or {})),
            )

    async def until_ready(self, port: int, why_not: Callable[[], Awaitable[str]]) -> None:
        """Wait until there is no reason left why it is not ready; raise if it ends or takes too long."""
        started = time.monotonic()
        while reason := await why_not():
            self.require_running()
            if time.monotonic() - started > START_SECONDS:
                raise ServerFailed(
                    f"{self.name} is not ready after {START_SECONDS:.0f} s: {reason}; its log ends:\n{self.tail()}"
                )
            await asyncio.sleep(POLL_SECONDS)
        SERVER_STARTED.emit(server=self.name, port=port, seconds=time.monotonic() - started)

    @property
    def is_running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def require_running(self) -> None:
        if self.process is not None and (code := self.process.poll()) is not None:
            raise ServerFailed(f"{self.name} ended with exit code {code}; its log ({self.log}) ends:\n{self.tail()}")

    async def until_ended(self) -> None:
        """Watch the process; raise when it ends, for nobody asked it to."""
        while True:
            self.require_running()
            await asyncio.sleep(10 * POLL_SECONDS)

    async def until_done(self) -> None:
        """Wait for a program that is meant to end; raise with its output if it failed, stop it if we are to stop."""
        try:
            while self.is_running:
                await asyncio.sleep(POLL_SECONDS)
        finally:
            if self.is_running:
                self.kill()
        if self.process is not None and self.process.returncode:
            self.require_running()

    async def stop(self) -> None:
        """Shut down cleanly; one that takes too long is forced, then killed."""
        started = time.monotonic()
        if not self.is_running:
            return
        for number in (self._stop_signal, self._force_signal, signal.SIGKILL):
            if number != self._stop_signal:
                SERVER_KILLED.emit(server=self.name)
            self._signal(number)
            if await self._ended_within(self._stop_seconds):
                break
        SERVER_STOPPED.emit(server=self.name, seconds=time.monotonic() - started)

    def kill(self) -> None:
        self._signal(self._force_signal)

    def tail(self) -> str:
        """The end of the log, for error messages."""
        try:
            lines = self.log.read_text(errors="replace").splitlines()
        except OSError:
            return "(no log)"
        return "\n".join(f"  {line}" for line in lines[-LOG_TAIL:]) or "  (empty)"

    def _signal(self, number: signal.Signals) -> None:
        if self.process is not None and self.process.poll() is None:
            # A server that was halted could not hear anything else.
            for each in (number, signal.SIGCONT):
                self.process.send_signal(each)

    async def _ended_within(self, seconds: float) -> bool:
        deadline = time.monotonic() + seconds
        while self.is_running and time.monotonic() < deadline:
            await asyncio.sleep(POLL_SECONDS)
        return not self.is_running


async def end_leftovers(
    name: str, programs: Sequence[str], marks: Sequence[str], stop_signal: signal.Signals, force_signal: signal.Signals
) -> None:
    """End what a killed platform left behind, so that nobody else writes to the data.

    On Linux the kernel has told servers to stop already, and this waits for them; elsewhere this is what stops them.
    """
    for number in (stop_signal, force_signal, signal.SIGKILL):
        left = find_processes(programs, marks)
        # A server ends its own processes; those whose server is gone are told themselves.
        for process in _without_their_children(left):
            if number == stop_signal:
                LEFTOVER_FOUND.emit(server=name, pid=process.pid)
            for each in (number, signal.SIGCONT):
                with suppress(psutil.Error):
                    process.send_signal(each)
        if left:
            await asyncio.to_thread(psutil.wait_procs, left, STOP_SECONDS)


def find_processes(programs: Sequence[str], marks: Sequence[str]) -> list[psutil.Process]:
    """Processes of these programs with one of the marks in their command line, which, unlike the rest, all may read."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.name() in programs and any(mark in part for part in process.cmdline() for mark in marks):
                found.append(process)
    return found


def _without_their_children(processes: list[psutil.Process]) -> list[psutil.Process]:
    numbers = {process.pid for process in processes}
    parents = []
    for process in processes:
        with suppress(psutil.Error):
            if process.ppid() not in numbers:
                parents.append(process)
    return parents
