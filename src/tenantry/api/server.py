"""Runs the HTTP API in this event loop."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import uvicorn
from starlette.types import ASGIApp

from tenantry.api.http_protocol import ApiProtocol
from tenantry.errors import PortTaken
from tenantry.telemetry import signal

LISTENING = signal("api.listening", "The HTTP API takes requests.", "host", "port")

DRAIN_SECONDS: Final = 10
BACKLOG: Final = 2048


class ApiServer:
    """A service that serves an application on a port; 0 chooses a free one."""

    name = "api"

    def __init__(self, app: ASGIApp, host: str, port: int) -> None:
        self.host = host
        self.port = port
        self._server = _Server(
            uvicorn.Config(
                app,
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=False,
                lifespan="on",
                http=ApiProtocol,
                ws="none",
                backlog=BACKLOG,
                timeout_graceful_shutdown=DRAIN_SECONDS,
            )
        )
        self._serving: asyncio.Task[None] | None = None

    @property
    def url(self) -> str:
        return f"http://{f'[{self.host}]' if ':' in self.host else self.host}:{self.port}"

    async def start(self) -> None:
        listener = _bind(self.host, self.port)
        self.port = listener.getsockname()[1]
        self._serving = asyncio.create_task(self._server.serve(sockets=[listener]), name="api")
        ready = asyncio.ensure_future(self._server.ready.wait())
        try:
            await asyncio.wait([self._serving, ready], return_when=asyncio.FIRST_COMPLETED)
        finally:
            ready.cancel()
        if self._serving.done():
            self._serving.result()
        LISTENING.emit(host=self.host, port=self.port)

    async def run(self) -> None:
        assert self._serving is not None
        # Cancelling this is no reason to drop requests: `stop` lets them end.
        await asyncio.shield(self._serving)

    async def stop(self) -> None:
        """Take no more requests and finish those under way."""
        if self._serving is not None:
            self._server.should_exit = True
            await self._serving

    def kill(self) -> None:
        self._server.should_exit = self._server.force_exit = True


class _Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.ready = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.ready.set()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Signals belong to whoever runs the services."""
        yield


def _bind(host: str, port: int) -> socket.socket:
    """Here and not in uvicorn, which ends the process when a port is taken."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
    except OSError as problem:
        raise PortTaken(f"the API cannot listen on {host}: {problem.strerror}; check api_host") from None
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        # A port that two have bound is only refused to the second when it listens.
        listener.listen(BACKLOG)
    except OSError as problem:
        listener.close()
        reason = (
            "is taken" if problem.errno == errno.EADDRINUSE else f"cannot be used: {os.strerror(problem.errno or 0)}"
        )
        raise PortTaken(
            f"port {port} of {host}, for the API, {reason}; choose another one with --api-port (0: any free one)"
        ) from None
    listener.setblocking(False)
    return listener
