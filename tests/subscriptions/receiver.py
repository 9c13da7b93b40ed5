"""A receiver of deliveries: a real HTTP server on this machine, which answers as it is told."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from ipaddress import ip_network
from typing import Final

import msgspec
from standardwebhooks import Webhook

from tenantry.subscriptions.push_address import AddressGuard
from tenantry.tenants.keyring import Keyring

LOOPBACK: Final = AddressGuard([ip_network("127.0.0.0/8"), ip_network("::1/128")])
KEYRING: Final = Keyring("a secret that nobody else has")


@dataclass
class Request:
    line: str
    headers: dict[str, str]
    body: bytes

    def verify(self, secret: str) -> object:
        """As a receiver would; raises unless the signature is good."""
        return Webhook(secret).verify(self.body, self.headers)


Answer = Callable[[Request, asyncio.StreamWriter], Awaitable[None]]


def answering(status: int, body: bytes = b"", **headers: str) -> Answer:
    async def answer(_: Request, writer: asyncio.StreamWriter) -> None:
        lines = [f"HTTP/1.1 {status} Said So", f"Content-Length: {len(body)}"]
        lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
        writer.write("\r\n".join(lines).encode() + b"\r\n\r\n" + body)
        await writer.drain()

    return answer


@dataclass
class Receiver:
    port: int = 0
    scheme: str = "http"
    answer: Answer = field(default_factory=lambda: answering(204))
    requests: list[Request] = field(default_factory=list)
    connections: int = 0

    def url(self, path: str = "/hook", host: str = "127.0.0.1") -> str:
        return f"{self.scheme}://{host}:{self.port}{path}"

    def event(self) -> object:
        """The one event that came."""
        (request,) = self.requests
        return msgspec.json.decode(request.body)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                line, *rest = head.strip().split("\r\n")
                headers = {name.lower(): value for name, _, value in (each.partition(": ") for each in rest)}
                body = await reader.readexactly(int(headers.get("content-length", "0")))
                request = Request(line, headers, body)
                self.requests.append(request)
                await self.answer(request, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()


@asynccontextmanager
async def receiving(tls: ssl.SSLContext | None = None) -> AsyncIterator[Receiver]:
    receiver = Receiver(scheme="https" if tls else "http")
    tasks: set[asyncio.Task[None]] = set()

    def begin(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.ensure_future(receiver.serve(reader, writer))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    server = await asyncio.start_server(begin, "127.0.0.1", 0, ssl=tls)
    receiver.port = server.sockets[0].getsockname()[1]
    try:
        yield receiver
    finally:
        server.close()
        for task in list(tasks):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
