"""The NATS client protocol as bytes: what the server sends, parsed in batches.

https://docs.nats.io/reference/reference-protocols/nats-protocol
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from nats_bulk.errors import ProtocolError

CRLF: Final = b"\r\n"
PING: Final = b"PING\r\n"
PONG: Final = b"PONG\r\n"
LONGEST_LINE: Final = 1 << 20

_MSG, _HMSG = b"MH"


class Delivery(NamedTuple):
    """A message for one of our subscriptions. `header` is empty when it came without one."""

    subject: bytes
    header: bytes
    payload: bytes


class Ping(NamedTuple):
    pass


class Pong(NamedTuple):
    pass


class Info(NamedTuple):
    document: bytes


class Refusal(NamedTuple):
    """`-ERR`: what the server did not like, in its words."""

    reason: str


class Acknowledgements(NamedTuple):
    """A run of ordinary publish acknowledgements, as columns: reply number, stream sequence, whether a duplicate.

    Thousands of them follow each other in a bulk publish, so they are parsed as a whole and not one by one.
    """

    replies: list[int]
    sequences: list[int]
    duplicates: list[bool]


Operation = Delivery | Ping | Pong | Info | Refusal | Acknowledgements


class Parser:
    """Turns the byte stream into operations; how the stream was split into reads makes no difference.

    With an `inbox`, acknowledgements to it come as `Acknowledgements`; an unusual one comes as a `Delivery`.
    """

    def __init__(self, inbox: str = "") -> None:
        self._acknowledgement = _AcknowledgementRun(inbox) if inbox else None
        self._chunks: list[bytes] = []
        self._held = 0
        self._needed = 0

    def feed(self, data: bytes) -> list[Operation]:
        # A large message arrives in many reads: they are joined once, when the last byte is there, not at each read.
        self._chunks.append(data)
        self._held += len(data)
        if self._held < self._needed:
            return []
        buffer = self._chunks[0] if len(self._chunks) == 1 else b"".join(self._chunks)
        operations: list[Operation] = []
        position, self._needed = _parse(buffer, operations, self._acknowledgement)
        rest = buffer[position:]
        self._chunks = [rest] if rest else []
        self._held = len(rest)
        return operations


class _AcknowledgementRun:
    """Recognises {"stream":"X", "seq":1}, with or without a domain and a duplicate flag, again and again."""

    def __init__(self, inbox: str) -> None:
        # Digits and names are taken possessively: there is one way to read them. Groups are not, because of
        # https://github.com/python/cpython/issues/101955 in early releases of Python 3.11.
        one = (
            rb"MSG %b(\d++) 1 (\d++)\r\n"
            rb'\{"stream":"[^"\\\r\n]*+", ?"seq":(\d++)(?:, ?"domain":"[^"\\\r\n]*+")?(, ?"duplicate": ?true)?\}\r\n'
        ) % re.escape(inbox.encode())
        self._one = re.compile(one)
        self._run = re.compile(rb"(?:%b)+" % re.sub(rb"\((?!\?)", b"(?:", one))
        self._fixed_size = len(f"MSG {inbox} 1 \r\n\r\n")

    def parse(self, buffer: bytes, position: int) -> tuple[Acknowledgements, int] | None:
        run = self._run.match(buffer, position)
        if run is None:
            return None
        replies, sizes, sequences, duplicates = zip(*self._one.findall(buffer, position, run.end()), strict=True)
        # What looks like an acknowledgement is one only if the announced sizes agree.
        announced = sum(map(int, sizes)) + sum(map(len, sizes)) + sum(map(len, replies))
        if announced + self._fixed_size * len(sizes) != run.end() - position:
            return None
        columns = Acknowledgements(list(map(int, replies)), list(map(int, sequences)), list(map(bool, duplicates)))
        return columns, run.end()


def _parse(buffer: bytes, operations: list[Operation], acknowledgement: _AcknowledgementRun | None) -> tuple[int, int]:
    """Append what is complete; return where the incomplete rest starts and how long that rest must become."""
    position = 0
    size = len(buffer)
    append = operations.append
    while position < size:
        line_end = buffer.find(CRLF, position)
        if line_end < 0:
            if size - position > LONGEST_LINE:
                raise ProtocolError(f"expected a protocol line, got: {_excerpt(buffer, position)}")
            break
        kind = buffer[position]
        if kind == _MSG and acknowledgement and (run := acknowledgement.parse(buffer, position)):
            columns, position = run
            append(columns)
        elif kind == _MSG or kind == _HMSG:  # noqa: SIM109 (a tuple would be built for each message)
            split, end = _measure(buffer, position, line_end)
            if end + 2 > size:
                return position, end + 2 - position
            if buffer[end : end + 2] != CRLF:
                raise ProtocolError(f"expected a message to end at its announced size, got: {_excerpt(buffer, end)}")
            subject_start = buffer.index(b" ", position) + 1
            subject = buffer[subject_start : buffer.index(b" ", subject_start)]
            append(Delivery(subject, buffer[line_end + 2 : split], buffer[split:end]))
            position = end + 2
        else:
            operation = _control(buffer[position:line_end])
            if operation is not None:
                append(operation)
            position = line_end + 2
    return position, 0


def _measure(buffer: bytes, position: int, line_end: int) -> tuple[int, int]:
    """Where the payload of a message starts and ends: MSG subject sid [reply] size, HMSG … header-size total-size."""
    fields = buffer[position:line_end].split(b" ")
    body = line_end + 2
    try:
        total_size = int(fields[-1])
        if fields[0] == b"MSG" and 4 <= len(fields) <= 5 and total_size >= 0:
            return body, body + total_size
        header_size = int(fields[-2])
        if fields[0] == b"HMSG" and 5 <= len(fields) <= 6 and 0 <= header_size <= total_size:
            return body + header_size, body + total_size
    except (ValueError, IndexError):
        pass
    raise ProtocolError(f"expected a message line, got: {_excerpt(buffer, position)}")


def _control(line: bytes) -> Operation | None:
    if line == b"PING":
        return Ping()
    if line == b"PONG":
        return Pong()
    if line == b"+OK":
        return None
    if line.startswith(b"INFO "):
        return Info(line[5:])
    if line.startswith(b"-ERR"):
        return Refusal(line[4:].decode(errors="replace").strip().strip("'"))
    raise ProtocolError(f"expected a NATS operation, got: {_excerpt(line, 0)}")


def _excerpt(buffer: bytes, position: int) -> str:
    return repr(buffer[position : position + 80])
