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
from nats_bulk.errors import (
    AuthenticationFailed,
    BulkError,
    ConnectionLost,
    InvalidMessage,
    ProtocolError,
    PublishFailed,
)
from nats_bulk.wire import CRLF, Acknowledgements, Delivery

WINDOW: Final = 8192
WINDOW_BYTES: Final = 16 << 20
CHUNK: Final = 1024
# So often may a connection break with nothing acknowledged in between: a message that the server cuts us off for must
# not be sent for ever.
MOST_LOSSES: Final = 5
# A protocol line has 4096 bytes at most, and the reply subject needs some of them.
LONGEST_SUBJECT: Final = 2048

_SUBJECT = re.compile(r"[^\s\0.*>]+(?:\.[^\s\0.*>]+)*")
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
        self._losses = 0
        self._gone: PublishError | None = None
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
        position = len(self._result.sequences)
        # Every message of the call has a reply number, sent or not, so that number and position differ by a constant.
        number = self._connection.new_replies(len(chunk))
        if position == 0:
            self._first_reply = number
        elif number - self._first_reply != position:
            raise RuntimeError("a connection was used for something else in the middle of a bulk publish")
        self._result.sequences.extend([0] * len(chunk))
        self._unanswered.update(enumerate(chunk, position))
        self._unanswered_bytes += sum([len(message.payload) for message in chunk])
        if self._gone:
            return self._give_up(self._gone)
        try:
            self._send(range(position, position + len(chunk)))
        except ConnectionLost as lost:
            self._recover(lost)

    def _send(self, positions: Iterable[int]) -> None:
        """Put messages on the wire; those that may not be sent fail at once."""
        connection, unanswered = self._connection, self._unanswered
        inbox, limit, first = connection.inbox, connection.max_payload, self._first_reply
        frames: list[bytes] = []
        for position in positions:
            message = unanswered[position]
            try:
                frame, size = encode(message, inbox, first + position)
            except InvalidMessage as problem:
                self._fail(position, PublishError(400, 0, str(problem)))
                continue
            if size > limit:
                self._fail(position, PublishError(413, 10054, f"it has {size} bytes and the server takes {limit}"))
                continue
            frames += frame, message.payload, CRLF
        connection.send(b"".join(frames))

    def _settle_some(self) -> None:
        try:
            answers = self._connection.receive()
        except ConnectionLost as lost:
            return self._recover(lost)
        if not answers:
            reason = f"no acknowledgement within {self._connection.timeout} s"
            return self._give_up(PublishError(504, 0, reason, certain=False))
        self._settle(answers)

    def _settle(self, answers: list[Answer]) -> None:
        self._losses = 0
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

    def _recover(self, lost: BulkError) -> None:
        """Connect again and repeat what is unanswered, in its order, as long as that leads anywhere."""
        for position, message in list(self._unanswered.items()):
            if message.id is None:
                self._fail(position, PublishError(503, 0, str(lost), certain=False))
        while True:
            self._losses += 1
            try:
                if self._losses > MOST_LOSSES:
                    raise lost
                self._connection.reconnect()
            except (ConnectionLost, AuthenticationFailed) as final:
                self._gone = PublishError(503, 0, str(final))
                return self._give_up(self._gone._replace(certain=False))
            try:
                positions = iter(list(self._unanswered))
                while chunk := list(islice(positions, self._chunk)):
                    self._send(chunk)
                return
            except ConnectionLost as again:
                lost = again

    def _give_up(self, error: PublishError) -> None:
        for position in list(self._unanswered):
            self._fail(position, error)

    def _fail(self, position: int, error: PublishError) -> None:
        self._result.errors[position] = error
        self._forget(position)

    def _forget(self, position: int) -> None:
        self._unanswered_bytes -= len(self._unanswered.pop(position).payload)


def encode(message: Message, inbox: str, reply: int) -> tuple[bytes, int]:
    """The protocol line and headers of a message, and its size; payload and CRLF follow on the wire."""
    subject, payload, id, headers = message
    _require_subject(subject)
    if id is None and not headers:
        return f"PUB {subject} {inbox}{reply} {len(payload)}\r\n".encode(), len(payload)
    header = "NATS/1.0\r\n" if id is None else f"NATS/1.0\r\nNats-Msg-Id: {_one_line(id)}\r\n"
    for name, value in headers.items() if headers else ():
        if _HEADER_NAME.fullmatch(name) is None:
            raise InvalidMessage(f"expected a header name of visible ASCII characters, got: {name!r}")
        header += f"{name}: {_one_line(value)}\r\n"
    size = 2 + (len(header) if header.isascii() else len(header.encode()))
    total = size + len(payload)
    return f"HPUB {subject} {inbox}{reply} {size} {total}\r\n{header}\r\n".encode(), total


@lru_cache(maxsize=4096)
def _require_subject(subject: str) -> None:
    if len(subject.encode()) > LONGEST_SUBJECT or _SUBJECT.fullmatch(subject) is None:
        raise InvalidMessage(
            f"expected a subject of tokens without spaces and wildcards, at most {LONGEST_SUBJECT} bytes, "
            f"got: {subject[:100]!r}"
        )


def _one_line(value: str) -> str:
    if "\r" in value or "\n" in value:
        raise InvalidMessage(f"expected a header value of one line, got: {value!r}")
    return value
