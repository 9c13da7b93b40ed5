"""HTTP/1.1 as uvicorn speaks it, with a limit for heads of requests, and answers that leave in one piece."""

from __future__ import annotations

import asyncio
import json
from http import HTTPStatus
from typing import Any, Final

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from tenantry.api.problems import MEDIA_TYPE

LARGEST_HEAD: Final = 64 << 10


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
                return self._refuse(431, f"expected a request line and headers of at most {LARGEST_HEAD:,} bytes")
        super().data_received(data)

    def send_400_response(self, msg: str) -> None:  # noqa: ARG002 (it says no more than the status)
        self._refuse(400, "expected a request as HTTP/1.1 has it")

    def _refuse(self, status: int, detail: str) -> None:
        """For what is no request yet, so that no route can answer it."""
        title = HTTPStatus(status).phrase
        problem = {"type": "about:blank", "title": title, "status": status, "detail": detail, "instance": ""}
        body = json.dumps(problem).encode()
        self.transport.write(
            f"HTTP/1.1 {status} {title}\r\ncontent-type: {MEDIA_TYPE}\r\nconnection: close\r\n"
            f"content-length: {len(body)}\r\n\r\n".encode()
            + body
        )
        self.transport.close()

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
