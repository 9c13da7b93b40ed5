"""Sends requests that are written beforehand over many connections, as cheaply as can be: the server is measured."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

_LENGTH = re.compile(rb"content-length: (\d+)", re.IGNORECASE)


@dataclass
class Measured:
    seconds: float
    latencies: list[float]


async def send_all(host: str, port: int, requests: Sequence[bytes], connections: int) -> Measured:
    """Send each once, one after the other on each connection; all must be answered with 202."""
    loop = asyncio.get_running_loop()
    left = iter(requests)
    clients = [_Client(left) for _ in range(connections)]
    for client in clients:
        await loop.create_connection(lambda client=client: client, host, port)  # type: ignore[misc]
    began = time.perf_counter()
    for client in clients:
        client.send_next()
    await asyncio.gather(*(client.done for client in clients))
    return Measured(time.perf_counter() - began, [each for client in clients for each in client.latencies])


class _Client(asyncio.Protocol):
    def __init__(self, requests: Iterator[bytes]) -> None:
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.latencies: list[float] = []
        self._requests = requests
        self._received = b""
        self._sent_at = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def send_next(self) -> None:
        request = next(self._requests, None)
        if request is None:
            self._transport.close()
            self.done.set_result(None)
            return
        self._sent_at = time.perf_counter()
        self._transport.write(request)

    def data_received(self, data: bytes) -> None:
        received = self._received = self._received + data
        end = received.find(b"\r\n\r\n")
        if end < 0:
            return
        length = _LENGTH.search(received, 0, end)
        if length is None or not received.startswith(b"HTTP/1.1 202"):
            return self._fail(f"expected 202, got: {received[:500]!r}")
        if len(received) < end + 4 + int(length[1]):
            return
        self.latencies.append(time.perf_counter() - self._sent_at)
        self._received = b""
        self.send_next()

    def connection_lost(self, error: Exception | None) -> None:
        self._fail(f"the server closed a connection: {error}")

    def _fail(self, reason: str) -> None:
        if not self.done.done():
            self.done.set_exception(RuntimeError(reason))
