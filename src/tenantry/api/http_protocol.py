"""HTTP/1.1, with a limit for what precedes a body: the parser keeps all of it in memory, however much comes."""

from __future__ import annotations

import json
from typing import Final

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


class BoundedProtocol(HttpToolsProtocol):
    """A head that comes in one read is let through: a read has its own limit."""

    _is_in_head = True
    _head_bytes = 0

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
