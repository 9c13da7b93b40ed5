"""Range read: a stream's messages from one sequence to another, in order, by batch direct get.

Any replica may answer a direct get, and one that lags answers short. So sequences are checked for continuity, and what
is missing is confirmed with the stream's leader before it counts as deleted.
https://github.com/nats-io/nats-architecture-and-design/blob/main/adr/ADR-31.md
"""

from __future__ import annotations

import base64
import calendar
import json
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final

from nats_bulk.connection import Connection
from nats_bulk.errors import (
    BulkError,
    ConnectionLost,
    NoAnswer,
    ProtocolError,
    RangeBeyondEnd,
    ServerRefused,
    StreamGone,
    StreamNotReadable,
)
from nats_bulk.wire import CRLF, Delivery, Refusal, StoredMessages

BATCH: Final = 4096
BATCH_BYTES: Final = 8 << 20
CONFIRMATIONS_AT_ONCE: Final = 256
MOST_LOSSES: Final = 5
# A stream without a leader has one again within seconds, and one on a server that restarts soon after.
PATIENCE: Final = 30.0
PAUSE: Final = 0.1
LONGEST_PAUSE: Final = 1.0

_NOT_FOUND: Final = 10037
_STREAM_NOT_FOUND: Final = 10059
_OFFLINE: Final = (10118, 10194)
# The server appends these six to whatever headers the publisher chose, so only the last ones are to be believed.
_TRAILER_START: Final = b"Nats-Stream: "
_TRAILER = re.compile(
    rb"Nats-Stream: [^\r\n]*\r\nNats-Subject: ([^\r\n]*)\r\nNats-Sequence: (\d+)\r\n"
    rb"Nats-Time-Stamp: ([^\r\n]*)\r\nNats-Num-Pending: \d+\r\nNats-Last-Sequence: \d+\r\n\r\n"
)
_BARE_HEADER: Final = len(b"NATS/1.0\r\n")


@dataclass(slots=True)
class RangeBatch:
    """Messages in the order of the stream, as columns of equal length."""

    subjects: list[str] = field(default_factory=list)
    sequences: list[int] = field(default_factory=list)
    timestamps: list[int] = field(default_factory=list)
    """When the server stored the message, in nanoseconds since 1970."""
    headers: list[bytes] = field(default_factory=list)
    """The publisher's header block as it was sent, empty where there was none; see `parse_headers`."""
    payloads: list[bytes] = field(default_factory=list)
    gaps: list[tuple[int, int]] = field(default_factory=list)
    """Sequences, first to last, that the stream no longer has: deleted, purged or expired."""

    def __len__(self) -> int:
        return len(self.sequences)


def read_range(
    connection: Connection,
    stream: str,
    first: int,
    last: int,
    *,
    batch: int = BATCH,
    batch_bytes: int = BATCH_BYTES,
    api_prefix: str = "$JS.API",
) -> Iterator[RangeBatch]:
    """Yield the messages `first` to `last`, both included; together, `sequences` and `gaps` cover the range exactly."""
    if first < 1 or batch < 1 or batch_bytes < 1:
        raise ValueError(
            f"expected a range from sequence 1 on and batches of at least 1, got: {first=} {batch=} {batch_bytes=}"
        )
    connection.wake()
    reader = _Reader(connection, stream, api_prefix)
    position, failures, give_up_at = first, 0, 0.0
    while position <= last:
        try:
            found = reader.fetch(position, min(batch, last - position + 1), batch_bytes)
            reader.check(found, position, last)
        except ConnectionLost:
            # Reading changes nothing, so it can be repeated, unless it is what the server cuts us off for.
            failures += 1
            if failures > MOST_LOSSES:
                raise
            connection.reconnect()
            continue
        except NoAnswer:
            # Counted from the first: whoever takes the batches may have taken its time before.
            give_up_at = give_up_at or time.monotonic() + PATIENCE
            failures += 1
            if time.monotonic() > give_up_at:
                raise
            time.sleep(min(PAUSE * failures, LONGEST_PAUSE))
            continue
        failures, give_up_at = 0, 0.0
        position = max(found.sequences[-1] if found.sequences else 0, found.gaps[-1][1] if found.gaps else 0) + 1
        yield found


class _Reader:
    def __init__(self, connection: Connection, stream: str, api_prefix: str) -> None:
        if "." in stream:
            raise ValueError(f"expected the name of a stream, which has no dots, got: {stream!r}")
        self._connection = connection
        self._stream = stream
        self._api = api_prefix

    def fetch(self, position: int, count: int, size: int) -> RangeBatch:
        """One batch direct get, as any replica answers it."""
        subject = f"{self._api}.DIRECT.GET.{self._stream}"
        question = json.dumps({"seq": position, "batch": count, "max_bytes": size}).encode()
        ours = self._connection.ask([(subject, question)]).encode() + b"0"
        found = RangeBatch()
        while True:
            answers = self._connection.receive()
            if not answers:
                raise NoAnswer(f"stream {self._stream} did not finish a read within {self._connection.timeout} s")
            for answer in answers:
                if isinstance(answer, StoredMessages):
                    if answer.reply == ours:
                        _add(found, answer)
                elif isinstance(answer, Refusal):
                    answer.raise_if_about(subject)
                # Others are the late rest of something that was given up.
                elif isinstance(answer, Delivery) and answer.subject == ours and self._take(answer, found):
                    return found

    def _take(self, answer: Delivery, found: RangeBatch) -> bool:
        """Add an unusual message to the columns; True when the answer says that the batch is over."""
        header = answer.header
        start = header.rfind(_TRAILER_START)
        trailer = _TRAILER.fullmatch(header, start) if start >= 0 else None
        if trailer is None:
            return self._end_of_batch(header)
        subject, sequence, stamp = trailer.groups()
        found.subjects.append(_text(subject))
        found.sequences.append(int(sequence))
        found.timestamps.append(nanoseconds(stamp))
        found.headers.append(header[:start] + CRLF if start > _BARE_HEADER else b"")
        found.payloads.append(answer.payload)
        return False

    def _end_of_batch(self, header: bytes) -> bool:
        status = header[9 : header.find(CRLF)]
        if status.startswith((b"204", b"404")):
            return True
        if status.startswith(b"503"):
            raise self._why_not_readable()
        raise ProtocolError(f"expected a message of stream {self._stream}, got: {header[:80]!r}")

    def _why_not_readable(self) -> Exception:
        answer = self._ask([("STREAM.INFO", {})])[0]
        if error := answer.get("error"):
            return self._refusal(error)
        if not answer["config"].get("allow_direct"):
            return StreamNotReadable(f"stream {self._stream} does not allow direct get: set allow_direct on it")
        return NoAnswer(f"no replica of stream {self._stream} answers for now")

    def check(self, found: RangeBatch, first: int, last: int) -> None:
        """Make `found` a true account of the range from `first` to where it ends, at most `last`."""
        self._cut_after(found, last)
        missing = _missing(found.sequences, first)
        if not found.sequences:
            missing = [(first, last)]
        for start in range(0, len(missing), CONFIRMATIONS_AT_ONCE):
            some = missing[start : start + CONFIRMATIONS_AT_ONCE]
            answers = self._ask([("STREAM.MSG.GET", {"seq": gap[0], "next_by_subj": ">"}) for gap in some])
            for gap, answer in zip(some, answers, strict=True):
                if not self._confirm(found, gap, answer):
                    return

    def _confirm(self, found: RangeBatch, gap: tuple[int, int], answer: dict[str, Any]) -> bool:
        """Record the gap if the leader has nothing there either; otherwise end the batch with the leader's message."""
        first, last = gap
        error = answer.get("error")
        if error is None:
            message = answer["message"]
            sequence = message["seq"]
            if sequence > last:
                found.gaps.append(gap)
                return True
            self._cut_after(found, first - 1)
            if sequence > first:
                found.gaps.append((first, sequence - 1))
            found.subjects.append(message["subject"])
            found.sequences.append(sequence)
            found.timestamps.append(nanoseconds(message["time"].encode()))
            found.headers.append(base64.b64decode(message.get("hdrs", "")))
            found.payloads.append(base64.b64decode(message.get("data", "")))
            return False
        if error.get("err_code") != _NOT_FOUND:
            raise self._refusal(error)
        end = self._last_sequence()
        if end < last:
            raise RangeBeyondEnd(
                f"expected stream {self._stream} to reach sequence {last}, but it ends at {end}; was it made anew?"
            )
        found.gaps.append(gap)
        return True

    def _last_sequence(self) -> int:
        answer = self._ask([("STREAM.INFO", {})])[0]
        if error := answer.get("error"):
            raise self._refusal(error)
        return int(answer["state"]["last_seq"])

    def _refusal(self, error: dict[str, Any]) -> BulkError:
        return refusal(error, f"stream {self._stream} cannot be read")

    def _ask(self, questions: list[tuple[str, dict[str, Any]]]) -> list[dict[str, Any]]:
        """Ask the stream's leader."""
        answers = self._connection.request_many(
            (f"{self._api}.{verb}.{self._stream}", json.dumps(body).encode()) for verb, body in questions
        )
        return [json.loads(answer) for answer in answers]

    @staticmethod
    def _cut_after(found: RangeBatch, last: int) -> None:
        while found.sequences and found.sequences[-1] > last:
            for column in (found.subjects, found.sequences, found.timestamps, found.headers, found.payloads):
                column.pop()


def refusal(error: dict[str, Any], what: str) -> BulkError:
    """What an error of JetStream's means to somebody who reads: gone for good, not now, or not at all."""
    description = f"{what}: {error.get('description', error)}"
    if error.get("err_code") == _STREAM_NOT_FOUND:
        return StreamGone(description)
    if error.get("code") == 503 or error.get("err_code") in _OFFLINE:
        return NoAnswer(description)
    return ServerRefused(description)


def _add(found: RangeBatch, stored: StoredMessages) -> None:
    found.subjects += map(_text, stored.subjects)
    found.sequences += map(int, stored.sequences)
    found.timestamps += map(nanoseconds, stored.stamps)
    found.headers += [header + CRLF if len(header) > _BARE_HEADER else b"" for header in stored.headers]
    found.payloads += stored.payloads


@lru_cache(maxsize=4096)
def _text(subject: bytes) -> str:
    # A subject is bytes to the server; one that is not text must not keep the rest from being read.
    return subject.decode(errors="replace")


def _missing(sequences: list[int], first: int) -> list[tuple[int, int]]:
    """The runs of sequences that are not there, from `first` to the last one that is."""
    runs: list[tuple[int, int]] = []
    if sequences == list(range(first, first + len(sequences))):
        return runs
    expected = first
    for sequence in sequences:
        if sequence < expected:
            raise ProtocolError(f"expected messages in order from sequence {expected} on, got: {sequence}")
        if sequence > expected:
            runs.append((expected, sequence - 1))
        expected = sequence + 1
    return runs


@lru_cache(maxsize=256)
def _second(stamp: bytes) -> int:
    return calendar.timegm(time.strptime(stamp.decode(), "%Y-%m-%dT%H:%M:%S")) * 1_000_000_000


def nanoseconds(stamp: bytes) -> int:
    """2026-11-15T09:30:00.123456789Z; the server leaves trailing zeros out."""
    if len(stamp) == 20:
        return _second(stamp[:19])
    return _second(stamp[:19]) + int(stamp[20:-1].ljust(9, b"0"))


def parse_headers(block: bytes) -> dict[str, list[str]]:
    """The names and values of a header block, in the publisher's spelling; a name may stand more than once."""
    headers: dict[str, list[str]] = {}
    for line in block.decode(errors="replace").split("\r\n")[1:]:
        name, colon, value = line.partition(":")
        if colon:
            headers.setdefault(name, []).append(value.strip())
    return headers
