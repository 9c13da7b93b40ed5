"""A nats-server with a configuration of its own, for what the shared one does not do."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from tenantry.embedded.child import Child
from tenantry.embedded.nats_server import find_nats_server
from tenantry.embedded.ports import HOST, free_port
from tests.processes import wait_for


class OwnServer:
    """A nats-server that a test can stop, kill and start again on the same port."""

    def __init__(self, folder: Path, settings: str) -> None:
        self.port = free_port()
        self._folder = folder
        self._settings = settings
        self._child = Child("nats", folder, signal.SIGTERM)

    @property
    def address(self) -> str:
        return f"{HOST}:{self.port}"

    async def start(self) -> None:
        config = self._folder / "server.conf"
        config.write_text(
            f'listen: {self.address}\njetstream {{ store_dir: "{self._folder / "store"}" }}\n{self._settings}\n'
        )
        self._child.spawn([find_nats_server(), "--config", config])
        await self._child.until_ready(self.port, self._why_not_listening)

    async def stop(self) -> None:
        await self._child.stop()

    def kill(self) -> None:
        assert self._child.process is not None
        self._child.process.kill()
        self._child.process.wait()

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """The server stands still: it neither answers nor ends the connection."""
        assert self._child.process is not None
        server = psutil.Process(self._child.process.pid)
        server.suspend()
        # Every thread has to have stopped: one that goes on for an instant could still answer.
        wait_for(lambda: all(_is_halted(thread.id) for thread in server.threads()))
        try:
            yield
        finally:
            self._child.process.send_signal(signal.SIGCONT)

    async def _why_not_listening(self) -> str:
        try:
            _, writer = await asyncio.open_connection(HOST, self.port)
        except OSError as problem:
            return str(problem)
        writer.close()
        return ""


def _is_halted(thread: int) -> bool:
    return bool(psutil.Process(thread).status() == psutil.STATUS_STOPPED)
