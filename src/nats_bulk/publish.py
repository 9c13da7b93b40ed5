"""Bulk publish to JetStream: many messages on the wire at once, every acknowledgement matched to its message."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import islice
from typing import Final, NamedTuple

from nats_bulk.connection import Answer, Connection
from nats_bulk.errors import ConnectionLost, InvalidMessage, ProtocolError, PublishFailed
from nats_bulk.wire import CRLF, Acknowledgements, Delivery

WINDOW: Final = 8192
WINDOW_BYTES: Final = 16 << 20
CHUNK: Final = 1024

_SUBJECT = re.compile(r"[^\s.*>]+(?:\.[^\s.*>]+)*")
_HEADER_NAME = re.compile(r"[!#-9;-~]+")


class Message(NamedTuple):
    """What to publish. With an `id` the server stores it once, however often it is sent within its duplicate window."""

    subject: str
    payload: bytes
    id: str | None = None
    headers: Mapping[str, str] | None = None


class PublishError(NamedTuple):
    """Why one message was not stored. `err_code` is JetStream's own number, 0 where it has none.

    `certain` is False when the message may have been stored all the same: the connection broke, or the answer is late.
    """

    code: int
    err_code: int
    description: str
    certain: bool = True


@dataclass(slots=True)
class PublishResult:
    """What became of each message, by its position in the call."""

    sequences: list[int] = field(default_factory=list)
    """The stream sequence of each message, 0 where it was not stored."""
    duplicates: set[int] = field(default_factory=set)
    """Positions of messages that the stream had already; `sequences` says where."""
    errors: dict[int, PublishError] = field(default_factory=dict)
    """Why, for each position that was not stored."""

    def raise_for_errors(self) -> None:
        if self.errors:
            position, first = next(iter(sorted(self.errors.items())))
            raise PublishFailed(
                f"{len(self.errors)} of {len(self.sequences)} messages were not stored; "
                f"the first is number {position}: {first.description}"
            )


def publish(
    connection: Connection, messages: Iterable[Message], *, window: int = WINDOW, window_bytes: int = WINDOW_BYTES
) -> PublishResult:
    """Publish all the messages and wait for their acknowledgements; no more than `window` are unanswered at any time.

    A message that cannot be stored becomes an entry in `errors`, and the others go on. If the connection breaks,
    unanswered messages with an id are sent again in their order on the next connection; those without one are reported
    as uncertain, for sending them again could store them twice.
    """
    connection.wake()
    return _Publishing(connection, window, window_bytes).run(iter(messages))


class _Publishing:
    def __init__(self, connection: Connection, window: int, window_bytes: int) -> None:
        self._connection = connection
        self._window = window
        self._window_bytes = window_bytes
        self._chunk = max(1, min(CHUNK, window // 4))
        self._first_reply = 0
        self._unanswered: dict[int, Message] = {}
        self._unanswered_bytes = 0
        self._result = PublishResult()

    def run(self, messages: Iterable[Message]) -> PublishResult:
        source = iter(messages)
        while chunk := list(islice(source, self._chunk)):
            self._admit(chunk)
            while len(self._unanswered) + self._chunk > self._window or self._unanswered_bytes > self._window_bytes:
                self._settle_some()
        while self._unanswered:
            self._settle_some()
        return self._result

    def _admit(self, chunk: list[Message]) -> None:
        """Put the messages that may be sent on the wire, and take a note of those that may not."""
        result, limit, inbox = self._result, self._connection.max_payload, self._connection.inbox
        position = len(result.sequences)
        # Every message of the call has a reply number, sent or not, so that number and position differ by a constant.
        number = self._connection.new_replies(len(chunk))
        if position == 0:
            self._first_reply = number
        elif number - self._first_reply != position:
            raise RuntimeError("a connection was used for something else in the middle of a bulk publish")
        result.sequences.extend([0] * len(chunk))
        frames: list[bytes] = []
        size = 0
        for message in chunk:
            payload_size = len(message.payload)
            if payload_size > limit:
                result.errors[position] = PublishError(
                    413, 10054, f"the payload has {payload_size} bytes and the server takes {limit}"
                )
            else:
                frames += encode(message, inbox, number), message.payload, CRLF
                self._unanswered[position] = message
                size += payload_size
            number += 1
            position += 1
        self._unanswered_bytes += size
        try:
            self._connection.send(b"".join(frames))
        except ConnectionLost as lost:
            self._recover(lost)

    def _settle_some(self) -> None:
        try:
            answers = self._connection.receive()
        except ConnectionLost as lost:
            return self._recover(lost)
        if not answers:
            late = PublishError(504, 0, f"no acknowledgement within {self._connection.timeout} s", certain=False)
            for position in list(self._unanswered):
                self._fail(position, late)
        self._settle(answers)

    def _settle(self, answers: list[Answer]) -> None:
        for answer in answers:
            if isinstance(answer, Acknowledgements):
                self._settle_run(answer)
            elif isinstance(answer, Delivery):
                self._settle_unusual(answer)
            else:
                self._refuse_subject(answer.reason)

    def _settle_run(self, run: Acknowledgements) -> None:
        first, sequences, take = self._first_reply, self._result.sequences, self._unanswered.pop
        freed = 0
        for reply, sequence, duplicate in zip(run.replies, run.sequences, run.duplicates, strict=True):
            position = reply - first
            message = take(position, None)
            if message is None:
                self._require_asked(reply)
                continue
            sequences[position] = sequence
            freed += len(message.payload)
            if duplicate:
                self._result.duplicates.add(position)
        self._unanswered_bytes -= freed

    def _require_asked(self, reply: int) -> None:
        # An answer nobody waits for is a late one (reported as uncertain before, or answered again after a reconnect).
        if not self._connection.was_asked(reply):
            raise ProtocolError(f"expected an acknowledgement we wait for, got number {reply}")

    def _settle_unusual(self, answer: Delivery) -> None:
        reply = self._connection.reply_number(answer)
        position = reply - self._first_reply
        if position not in self._unanswered:
            return self._require_asked(reply)
        if answer.header.startswith(b"NATS/1.0 503"):
            subject = self._unanswered[position].subject
            return self._fail(position, PublishError(503, 0, f"no stream takes the subject {subject}"))
        try:
            document = json.loads(answer.payload)
            if error := document.get("error"):
                return self._fail(
                    position, PublishError(error["code"], error.get("err_code", 0), error.get("description", ""))
                )
            sequence = int(document["seq"])
        except (ValueError, KeyError, TypeError, AttributeError):
            raise ProtocolError(f"expected an acknowledgement, got: {answer.payload[:80]!r}") from None
        self._result.sequences[position] = sequence
        if document.get("duplicate"):
            self._result.duplicates.add(position)
        self._forget(position)

    def _refuse_subject(self, reason: str) -> None:
        """A permissions violation names the subject only, and holds for every message to it."""
        refused = [position for position, message in self._unanswered.items() if f'"{message.subject}"' in reason]
        for position in refused:
            self._fail(position, PublishError(403, 0, reason))

    def _recover(self, lost: ConnectionLost) -> None:
        for position, message in list(self._unanswered.items()):
            if message.id is None:
                self._fail(position, PublishError(503, 0, str(lost), certain=False))
        try:
            self._connection.reconnect()
            inbox, first = self._connection.inbox, self._first_reply
            for position, message in self._unanswered.items():
                self._connection.send(encode(message, inbox, first + position) + message.payload + CRLF)
        except ConnectionLost as still_lost:
            for position in list(self._unanswered):
                self._fail(position, PublishError(503, 0, str(still_lost), certain=False))

    def _fail(self, position: int, error: PublishError) -> None:
        self._result.errors[position] = error
        self._forget(position)

    def _forget(self, position: int) -> None:
        self._unanswered_bytes -= len(self._unanswered.pop(position).payload)


def encode(message: Message, inbox: str, reply: int) -> bytes:
    """The protocol line and headers of a message; payload and CRLF follow it on the wire."""
    subject, payload, id, headers = message
    _require_subject(subject)
    if id is None and not headers:
        return f"PUB {subject} {inbox}{reply} {len(payload)}\r\n".encode()
    header = "NATS/1.0\r\n" if id is None else f"NATS/1.0\r\nNats-Msg-Id: {_one_line(id)}\r\n"
    for name, value in headers.items() if headers else ():
        if _HEADER_NAME.fullmatch(name) is None:
            raise InvalidMessage(f"expected a header name of visible ASCII characters, got: {name!r}")
        header += f"{name}: {_one_line(value)}\r\n"
    size = 2 + (len(header) if header.isascii() else len(header.encode()))
    return f"HPUB {subject} {inbox}{reply} {size} {size + len(payload)}\r\n{header}\r\n".encode()


@lru_cache(maxsize=4096)
def _require_subject(subject: str) -> None:
    if _SUBJECT.fullmatch(subject) is None:
        raise InvalidMessage(f"expected a subject of tokens without spaces and wildcards, got: {subject!r}")


def _one_line(value: str) -> str:
    if "\r" in value or "\n" in value:
        raise InvalidMessage(f"expected a header value of one line, got: {value!r}")
    return value
