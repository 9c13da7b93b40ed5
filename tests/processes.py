"""`tenantry` as a process of its own, the way people run it."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import psutil

from tenantry.embedded.child import find_processes
from tenantry.embedded.postgres_server import process_marks

TENANTRY = Path(sys.executable).parent / "tenantry"
PATIENCE = 60.0


def run_tenantry(
    *arguments: str | Path,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    input: str | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end."""
    return subprocess.run(
        [TENANTRY, *arguments],
        capture_output=True,
        text=True,
        env=dict(os.environ, **(env or {})),
        cwd=cwd,
        input=input,
        timeout=120,
    )


class Up:
    """`tenantry up`, in the background."""

    def __init__(self, data: Path, *arguments: str, env: Mapping[str, str] | None = None) -> None:
        self.data = data
        self._output = data.with_suffix(".out")
        with self._output.open("w") as output:
            self.process = subprocess.Popen(
                [TENANTRY, "up", "--data", data, *arguments],
                stdout=output,
                stderr=subprocess.STDOUT,
                env=dict(os.environ, **(env or {})),
            )

    def until_ready(self) -> None:
        wait_for(lambda: "Tenantry is ready" in self.output or self.process.poll() is not None)
        assert self.process.poll() is None, self.output

    @property
    def output(self) -> str:
        return self._output.read_text()

    @property
    def environment(self) -> dict[str, str]:
        """What the `env` file that it writes would set in a shell."""
        lines = (self.data / "env").read_text().splitlines()
        pairs = (line.removeprefix("export ").partition("=") for line in lines)
        return {name: value.strip("'") for name, _, value in pairs}

    @property
    def servers(self) -> list[psutil.Process]:
        """The processes at work in this data directory, whoever their parent is: servers and what they started."""
        marks = [str(self.data), *process_marks(self.data / "postgres")]
        return find_processes(["nats-server", "postgres", "initdb"], marks)

    def server(self, name: str) -> psutil.Process:
        """The server itself, and not what it started."""
        numbers = {process.pid for process in self.servers}
        (found,) = [each for each in self.servers if each.name() == name and each.ppid() not in numbers]
        return found

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def stop(self) -> int:
        self.process.terminate()
        return self.process.wait(PATIENCE)

    def __enter__(self) -> Up:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.stop()


def wait_for(condition: Callable[[], bool]) -> None:
    """Wait until something is so; fail if it never is."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)
