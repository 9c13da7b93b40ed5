"""A server as a child process: started under the launcher, watched, stopped, and never left behind."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
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
    "A server of an earlier, killed process was still running.",
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
    """One server process and its log."""

    def __init__(self, name: str, folder: Path, stop_signal: signal.Signals, user: str = "") -> None:
        self.name = name
        self.log = folder / "server.log"
        self._folder = folder
        self._stop_signal = stop_signal
        self._user = user
        self.process: subprocess.Popen[bytes] | None = None

    def spawn(self, command: Sequence[str | Path], environment: Mapping[str, str] | None = None) -> None:
        """Start the process. Call it on the main thread: Linux ends the child when the thread that made it ends."""
        launcher: list[str | Path] = [sys.executable, "-I", "-S", Path(__file__).with_name("_launcher.py")]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [*launcher, str(os.getpid()), str(int(self._stop_signal)), self._user, *command],
                cwd=self._folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=dict(os.environ, **(environment or {})),
            )

    async def until_ready(self, port: int, is_ready: Callable[[], Awaitable[bool]]) -> None:
        """Wait until the server answers; raise with the end of its log if it ends or takes too long."""
        started = time.monotonic()
        while not await is_ready():
            self.require_running()
            if time.monotonic() - started > START_SECONDS:
                raise ServerFailed(
                    f"{self.name} did not answer within {START_SECONDS:.0f} s; its log ends:\n{self.tail()}"
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
        """Wait for a program that is meant to end; raise with its output if it failed."""
        while self.is_running:
            await asyncio.sleep(POLL_SECONDS)
        if self.process is not None and self.process.returncode:
            self.require_running()

    async def stop(self) -> None:
        if self.process is None:
            return
        started = time.monotonic()
        if self.process.poll() is None:
            self.process.send_signal(self._stop_signal)
        try:
            while self.process.poll() is None:
                if time.monotonic() - started > STOP_SECONDS:
                    SERVER_KILLED.emit(server=self.name)
                    self.process.kill()
                await asyncio.sleep(POLL_SECONDS)
        except asyncio.CancelledError:
            self.process.kill()
            self.process.wait()
            raise
        finally:
            if self.process.poll() is not None:
                self.process = None
        SERVER_STOPPED.emit(server=self.name, seconds=time.monotonic() - started)

    def tail(self) -> str:
        """The end of the log, for error messages."""
        try:
            lines = self.log.read_text(errors="replace").splitlines()
        except OSError:
            return "(no log)"
        return "\n".join(f"  {line}" for line in lines[-LOG_TAIL:]) or "  (empty)"


def end_leftover(name: str, pid_file: Path, folder: Path, stop_signal: signal.Signals) -> None:
    """Stop the server that a killed process left behind in `folder`, if there is one.

    On Linux the kernel has told it to stop already, and this waits for it; elsewhere this is what stops it.
    """
    try:
        process = psutil.Process(int(pid_file.read_text().split()[0]))
        if not any(str(folder) in part for part in process.cmdline()):
            return  # the number was given to another process since
    except (OSError, ValueError, IndexError, psutil.Error):
        return
    LEFTOVER_FOUND.emit(server=name, pid=process.pid)
    for number in (stop_signal, signal.SIGKILL):
        try:
            process.send_signal(number)
            process.wait(STOP_SECONDS)
        except psutil.NoSuchProcess:
            return
        except psutil.TimeoutExpired:
            continue
        return
