"""The NATS client protocol as bytes: what the server sends, parsed in batches.

https://docs.nats.io/reference/reference-protocols/nats-protocol
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from nats_bulk.errors import InvalidMessage, ProtocolError, ServerRefused

CRLF: Final = b"\r\n"
PING: Final = b"PING\r\n"
PONG: Final = b"PONG\r\n"
LONGEST_LINE: Final = 1 << 20
# The server takes protocol lines of 4096 bytes, and the reply subject needs some of them.
LONGEST_SUBJECT: Final = 2048

# Quotes and backslashes are legal, but the server escapes them in its refusals, which then could not be matched.
_SUBJECT = re.compile(r"""[^\s.*>"\\]+(?:\.[^\s.*>"\\]+)*""")

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

    @property
    def is_about_permissions(self) -> bool:
        """These leave the connection open; all others end it."""
        return self.reason.lower().startswith("permissions violation")

    def is_about(self, subject: str) -> bool:
        return f'"{subject}"' in self.reason

    def raise_if_about(self, subject: str) -> None:
        """It may be the late answer to something else: one is sent for each message that was not permitted."""
        if self.is_about(subject):
            raise ServerRefused(self.reason)


class Acknowledgements(NamedTuple):
    """A run of ordinary publish acknowledgements, as columns: reply number, stream sequence, whether a duplicate.

    Thousands of them follow each other in a bulk publish, so they are parsed as a whole and not one by one.
    """

    replies: list[int]
    sequences: list[int]
    duplicates: list[bool]


class StoredMessages(NamedTuple):
    """A run of messages of a stream in answer to one question, as columns, for the same reason."""

    reply: bytes
    subjects: tuple[bytes, ...]
    sequences: tuple[bytes, ...]
    stamps: tuple[bytes, ...]
    headers: tuple[bytes, ...]
    """The publisher's, without the empty line at the end."""
    payloads: list[bytes]


class ConsumedMessages(NamedTuple):
    """A run of messages that consumers handed out, as columns, for the same reason. `replies` acknowledge them."""

    subjects: list[bytes]
    replies: list[bytes]
    headers: list[bytes]
    payloads: list[bytes]


def require_subject(subject: str) -> str:
    """Refuse what is not a subject to publish to, above all what would end the protocol line early."""
    if _SUBJECT.fullmatch(subject) is None or not subject.isprintable() or len(subject.encode()) > LONGEST_SUBJECT:
        raise InvalidMessage(
            "expected a subject of tokens without spaces, wildcards, quotes and backslashes, at most "
            f"{LONGEST_SUBJECT} bytes, got: {subject[:100]!r}"
        )
    return subject


Operation = Delivery | Ping | Pong | Info | Refusal | Acknowledgements | StoredMessages | ConsumedMessages


class Parser:
    """Turns the byte stream into operations; how the stream was split into reads makes no difference.

    With an `inbox`, acknowledgements to it come as `Acknowledgements`, messages of a stream as `StoredMessages`, and
    those of consumers as `ConsumedMessages`; an unusual one comes as a `Delivery`. Who does not read streams can have
    theirs as `Delivery`, too.
    """

    def __init__(self, inbox: str = "", *, reads_streams: bool = True) -> None:
        stored = _StoredRun(inbox) if reads_streams else None
        self._runs = _Runs(_AcknowledgementRun(inbox), stored, _ConsumedRun()) if inbox else None
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
        position, self._needed = _parse(buffer, operations, self._runs)
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
            rb'\{"stream":"[^"\\\r\n]*+"(?:, ?"domain":"[^"\\\r\n]*+")?, ?"seq":(\d++)'
            rb'(?:, ?"domain":"[^"\\\r\n]*+")?(, ?"duplicate": ?true)?\}\r\n'
        ) % re.escape(inbox.encode())
        self._one = re.compile(one)
        self._run = re.compile(rb"(?:%b)+" % re.sub(rb"\((?!\?)", b"(?:", one))
        self._fixed_size = len(f"MSG {inbox} 1 \r\n\r\n")

    def parse(self, buffer: bytes, position: int) -> tuple[Acknowledgements, int] | None:
        """The acknowledgements from `position` on and where they end; None if the first thing there is none."""
        # Most often nothing else is there up to the last complete one, and finding them all tells at once.
        return self._take(buffer, position, buffer.rfind(b"}\r\n") + 3) or self._take_run(buffer, position)

    def _take_run(self, buffer: bytes, position: int) -> tuple[Acknowledgements, int] | None:
        run = self._run.match(buffer, position)
        return self._take(buffer, position, run.end()) if run else None

    def _take(self, buffer: bytes, position: int, end: int) -> tuple[Acknowledgements, int] | None:
        found = self._one.findall(buffer, position, end)
        if not found:
            return None
        replies, sizes, sequences, duplicates = zip(*found, strict=True)
        # If their announced sizes add up to the whole, then nothing lies between them and each is what it looks like.
        announced = sum(map(int, sizes)) + sum(map(len, sizes)) + sum(map(len, replies))
        if announced + self._fixed_size * len(sizes) != end - position:
            return None
        again = list(map(bool, duplicates)) if any(duplicates) else [False] * len(sizes)
        return Acknowledgements(list(map(int, replies)), list(map(int, sequences)), again), end


class _StoredRun:
    """Recognises messages of a stream, as the server sends them: with six headers of its own after the publisher's."""

    def __init__(self, inbox: str) -> None:
        # Whatever the publisher wrote, the server's headers are the last before the empty line.
        self._one = re.compile(
            rb"HMSG (%b[^ \r\n]++) 1 (\d++) (\d++)\r\n(NATS/1\.0\r\n(?:[^\r\n]++\r\n)*?)"
            rb"Nats-Stream: [^\r\n]*+\r\nNats-Subject: ([^\r\n]*+)\r\nNats-Sequence: (\d++)\r\n"
            rb"Nats-Time-Stamp: ([^\r\n]*+)\r\nNats-Num-Pending: \d++\r\nNats-Last-Sequence: \d++\r\n\r\n"
            % re.escape(inbox.encode())
        )

    def parse(self, buffer: bytes, position: int) -> tuple[StoredMessages, int] | None:
        """Those from `position` on, as long as they answer one question, and where they end."""
        size, match = len(buffer), self._one.match
        lines: list[tuple[bytes, ...]] = []
        payloads: list[bytes] = []
        while found := match(buffer, position):
            line = found.groups()
            start, header = found.end(), found.start(4)
            end = header + int(line[2])
            if (
                end + 2 > size
                # A publisher may have written an empty line of its own; then this was not the end of the headers.
                or start != header + int(line[1])
                or buffer[end : end + 2] != CRLF
                or (lines and line[0] != lines[0][0])
            ):
                break
            lines.append(line)
            payloads.append(buffer[start:end])
            position = end + 2
        if not lines:
            return None
        replies, _, _, headers, subjects, sequences, stamps = zip(*lines, strict=True)
        return StoredMessages(replies[0], subjects, sequences, stamps, headers, payloads), position


class _ConsumedRun:
    """Recognises messages of consumers, with or without headers, by the reply that they are to be acknowledged with."""

    _line = re.compile(rb"H?MSG ([^ \r\n]++) \d++ (\$JS\.ACK\.[^ \r\n]++) (\d++)(?: (\d++))?\r\n")

    def parse(self, buffer: bytes, position: int) -> tuple[ConsumedMessages, int] | None:
        """Those from `position` on, and where they end."""
        size, match = len(buffer), self._line.match
        run = ConsumedMessages([], [], [], [])
        while found := match(buffer, position):
            subject, reply, first, second = found.groups()
            start = found.end()
            split = start if second is None else start + int(first)
            end = start + int(first if second is None else second)
            if end + 2 > size or split > end or buffer[end : end + 2] != CRLF:
                break
            run.subjects.append(subject)
            run.replies.append(reply)
            run.headers.append(buffer[start:split])
            run.payloads.append(buffer[split:end])
            position = end + 2
        return (run, position) if run.replies else None


class _Runs(NamedTuple):
    acknowledgements: _AcknowledgementRun
    stored: _StoredRun | None
    consumed: _ConsumedRun

    def parse(self, buffer: bytes, position: int, kind: int) -> tuple[Operation, int] | None:
        """The run that begins here, if one does."""
        if kind == _HMSG:
            consumed = self.consumed.parse(buffer, position)
            return consumed or (self.stored.parse(buffer, position) if self.stored else None)
        if kind == _MSG:
            return self.consumed.parse(buffer, position) or self.acknowledgements.parse(buffer, position)
        return None


def _parse(buffer: bytes, operations: list[Operation], runs: _Runs | None) -> tuple[int, int]:
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
        if runs and (run := runs.parse(buffer, position, kind)):
            operation, position = run
            append(operation)
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
            control = _control(buffer[position:line_end])
            if control is not None:
                append(control)
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
