"""Ids that come out the same when rows are written again, so that the server, which has them, adds nothing.

An id is made of what is written, not of a row's position: a task that is repeated after a shuffle may get its rows in
another order, and by position one row would get the id of another, which the server then drops. Of identical rows in a
partition it does not matter which is which, so they are counted. Rows that come in another partition when they are
repeated, because the query was given another number of them, are added once more; nothing is ever lost.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from hashlib import blake2b


class MessageIds:
    """Those of one partition. It remembers each row by a number, for some 70 bytes."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self._seen: set[int] = set()
        self._repeated: dict[int, int] = {}

    def of(self, subject: str, headers: Mapping[str, Sequence[str]] | None, payload: bytes) -> str:
        # A map has no order that would be kept. Neither subjects nor headers may have line ends in them, so that
        # different messages do not look the same here.
        lines = (
            [f"{name}: {value}\r\n" for name, values in sorted(headers.items()) for value in values] if headers else ()
        )
        content = blake2b(f"{subject}\r\n{''.join(lines)}\r\n".encode(), digest_size=16)
        content.update(payload)
        digest = content.hexdigest()
        number = int(digest[:16], 16)
        if number not in self._seen:
            self._seen.add(number)
            return f"{self._prefix}.{digest}"
        self._repeated[number] = count = self._repeated.get(number, 1) + 1
        return f"{self._prefix}.{digest}.{count}"
