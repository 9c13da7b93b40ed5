"""HTTP/1.1 as uvicorn speaks it, with a limit for heads of requests, and answers that leave in one piece."""

from __future__ import annotations

import asyncio
import json
from typing import Any, Final

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

LARGEST_HEAD: Final = 64 << 10

_PROBLEM: Final = json.dumps(
    {
        "type": "about:blank",
        "title": "Request Header Fields Too Large",
        "status": 431,
        "detail": f"expected a request line and headers of at most {LARGEST_HEAD:,} bytes",
        "instance": "",
    }
).encode()
_ANSWER: Final = (
    b"HTTP/1.1 431 Request Header Fields Too Large\r\ncontent-type: application/problem+json\r\n"
    b"connection: close\r\ncontent-length: %d\r\n\r\n%b"
) % (len(_PROBLEM), _PROBLEM)


class ApiProtocol(HttpToolsProtocol):
    """The parser keeps a head in memory, however long it is. One that comes in a single read is let through: a read has
    its own limit."""

    _is_in_head = True
    _head_bytes = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(_Gathering(transport))  # type: ignore[arg-type]

    def data_received(self, data: bytes) -> None:
        if self._is_in_head:
            self._head_bytes += len(data)
            if self._head_bytes > LARGEST_HEAD and self._head_bytes > len(data):
                self.transport.write(_ANSWER)
                return self.transport.close()
        super().data_received(data)

    def on_message_begin(self) -> None:
        self._is_in_head = True
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._is_in_head = False
        self._head_bytes = 0
        super().on_headers_complete()


class _Gathering:
    """A transport that waits with the head of an answer for the body: to send costs more than to make most answers."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._loop = asyncio.get_running_loop()
        self._held = b""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        if self._held:
            self._transport.write(self._held + data)
            self._held = b""
        else:
            self._held = data
            # The body may take its time.
            self._loop.call_soon(self._flush)

    def close(self) -> None:
        self._flush()
        self._transport.close()

    def _flush(self) -> None:
        if self._held:
            self._transport.write(self._held)
            self._held = b""
