"""Bulk publish to JetStream: many messages on the wire at once, every acknowledgement matched to its message."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
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
from nats_bulk.wire import CRLF, Acknowledgements, Delivery, Refusal, require_subject

WINDOW: Final = 8192
WINDOW_BYTES: Final = 16 << 20
# How much goes out in one piece. The connection's timeout is for one piece.
PORTION: Final = 1024
PORTION_BYTES: Final = 1 << 20
# Reading in long runs is cheaper, but a server that is not listened to for long gives up on us.
UNREAD_SECONDS: Final = 0.5
# So often may a connection break with nothing acknowledged in between: a message that the server cuts us off for must
# not be sent for ever.
MOST_LOSSES: Final = 5

_DUPLICATE_IN_PROCESS: Final = 10158
_HEADER_NAME = re.compile(r"[!#-9;-~]+")
_checked_subject = lru_cache(maxsize=4096)(require_subject)


class Message(NamedTuple):
    """What to publish. With an `id` the server stores it once, however often it is sent within its duplicate window."""

    subject: str
    payload: bytes
    id: str | None = None
    headers: Mapping[str, str | Sequence[str]] | None = None
    """By name; one with several values stands there as often."""


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
    """Positions of messages that the stream had already; `sequences` says where. After a reconnect, what this call had
    to send twice is among them."""
    errors: dict[int, PublishError] = field(default_factory=dict)
    """Why, for each position that was not stored."""

    def raise_for_errors(self) -> None:
        if self.errors:
            position, first = min(self.errors.items())
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
    if window < 1 or window_bytes < 1:
        raise ValueError(f"expected a window of at least 1 message and 1 byte, got: {window} and {window_bytes}")
    connection.wake()
    return _Publishing(connection, window, window_bytes).run(iter(messages))


class _Publishing:
    def __init__(self, connection: Connection, window: int, window_bytes: int) -> None:
        self._connection = connection
        self._portion = max(1, min(PORTION, window // 4))
        self._most_unanswered = window - self._portion
        self._most_unanswered_bytes = window_bytes
        self._first_reply = 0
        self._unanswered: dict[int, Message] = {}
        self._unanswered_bytes = 0
        self._nobody_took: dict[int, Message] = {}
        self._sent_twice_below = 0
        self._last_read = time.monotonic()
        self._losses = 0
        self._gone: PublishError | None = None
        self._result = PublishResult()

    def run(self, messages: Iterator[Message]) -> PublishResult:
        while taken := list(islice(messages, self._portion)):
            if time.monotonic() - self._last_read > UNREAD_SECONDS:
                self._settle_what_is_there()
            for portion in _portions(taken):
                self._admit(portion)
                while (
                    len(self._unanswered) > self._most_unanswered
                    or self._unanswered_bytes > self._most_unanswered_bytes
                ):
                    self._settle_some()
        while self._unanswered:
            self._settle_some()
        return self._result

    def _admit(self, portion: list[Message]) -> None:
        position = len(self._result.sequences)
        # Every message of the call has a reply number, sent or not, so that number and position differ by a constant.
        number = self._connection.new_replies(len(portion))
        if position == 0:
            self._first_reply = number
        elif number - self._first_reply != position:
            raise RuntimeError("a connection was used for something else in the middle of a bulk publish")
        self._result.sequences.extend([0] * len(portion))
        self._unanswered.update(enumerate(portion, position))
        self._unanswered_bytes += _size(portion)
        if self._gone:
            return self._give_up(self._gone)
        try:
            self._send(range(position, position + len(portion)))
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

    def _settle_what_is_there(self) -> None:
        """Without waiting. The source may have taken its time, and the server its measures."""
        try:
            self._settle_until_silent()
        except ConnectionLost as lost:
            if not self._gone:
                self._recover(lost)

    def _settle_until_silent(self) -> None:
        self._last_read = time.monotonic()
        while answers := self._connection.receive(0.0):
            self._settle(answers)

    def _settle_some(self) -> None:
        try:
            self._last_read = time.monotonic()
            answers = self._connection.receive()
        except ConnectionLost as lost:
            return self._recover(lost)
        if not answers:
            reason = f"no acknowledgement within {self._connection.timeout} s"
            return self._give_up(PublishError(504, 0, reason, certain=False))
        self._settle(answers)

    def _settle(self, answers: list[Answer]) -> None:
        before = len(self._unanswered)
        for answer in answers:
            if isinstance(answer, Acknowledgements):
                self._settle_run(answer)
            elif isinstance(answer, Delivery):
                self._settle_unusual(answer)
            elif isinstance(answer, Refusal):
                # A permissions violation names the subject only, and holds for every message to it.
                refused = [place for place, message in self._unanswered.items() if answer.is_about(message.subject)]
                for position in refused:
                    self._fail(position, PublishError(403, 0, answer.reason))
        if len(self._unanswered) < before:
            self._losses = 0

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
        number = answer.subject[len(self._connection.inbox) :]
        if not number.isdigit():
            return  # the late answer to a question that was given up
        position = int(number) - self._first_reply
        if position not in self._unanswered:
            return self._require_asked(int(number))
        message = self._unanswered[position]
        error = error_in(answer, message.subject)
        if error.code == 503 and message.id is not None:
            # Either there is no stream, or the server is about to go, and ends its streams before its connections.
            self._nobody_took[position] = message
        self._fail(position, error)

    def _recover(self, lost: BulkError) -> None:
        """Connect again and repeat what is unanswered, as long as that leads anywhere."""
        try:
            # Answers that came before the end still count.
            self._settle_until_silent()
        except ConnectionLost as ended:
            lost = ended
        for position, message in list(self._unanswered.items()):
            if message.id is None:
                self._fail(position, PublishError(503, 0, str(lost), certain=False))
        self._take_back_what_nobody_took()
        self._sent_twice_below = len(self._result.sequences)
        while True:
            self._losses += 1
            try:
                if self._losses > MOST_LOSSES:
                    raise lost
                self._connection.reconnect()
            except (ConnectionLost, AuthenticationFailed) as final:
                self._gone = PublishError(503, 0, str(final))
                return self._give_up(self._gone)
            try:
                return self._repeat()
            except ConnectionLost as again:
                lost = again

    def _take_back_what_nobody_took(self) -> None:
        for position, message in self._nobody_took.items():
            del self._result.errors[position]
            self._unanswered_bytes += len(message.payload)
        self._unanswered = dict(sorted((self._unanswered | self._nobody_took).items()))
        self._nobody_took = {}

    def _repeat(self) -> None:
        """Send what is unanswered once more, in its order."""
        positions = iter(list(self._unanswered))
        while taken := list(islice(positions, self._portion)):
            for portion in _portions([self._unanswered[position] for position in taken]):
                self._send(taken[: len(portion)])
                del taken[: len(portion)]

    def _give_up(self, error: PublishError) -> None:
        for position in list(self._unanswered):
            self._fail(position, error)

    def _fail(self, position: int, error: PublishError) -> None:
        if position < self._sent_twice_below:
            # What the second copy met says nothing about the first.
            error = error._replace(certain=False)
        self._result.errors[position] = error
        self._unanswered_bytes -= len(self._unanswered.pop(position).payload)


def error_in(answer: Delivery, subject: str) -> PublishError:
    """Why a message to `subject` was answered with this and not with an acknowledgement."""
    if answer.header.startswith(b"NATS/1.0 503"):
        return PublishError(503, 0, f"no stream takes the subject {subject} now")
    try:
        error = json.loads(answer.payload)["error"]
        code, err_code = int(error["code"]), int(error.get("err_code", 0))
        return PublishError(code, err_code, error["description"], certain=err_code != _DUPLICATE_IN_PROCESS)
    except (ValueError, KeyError, TypeError, AttributeError):
        # Somebody who listens to the subject answered before the stream did.
        reason = f"expected an acknowledgement, got: {answer.payload[:80]!r}; does somebody else answer {subject}?"
        return PublishError(502, 0, reason, certain=False)


def _portions(messages: list[Message]) -> Iterator[list[Message]]:
    """Halve until a portion is small enough; a message that is not stays alone."""
    if len(messages) == 1 or _size(messages) <= PORTION_BYTES:
        yield messages
    else:
        middle = len(messages) // 2
        yield from _portions(messages[:middle])
        yield from _portions(messages[middle:])


def _size(messages: list[Message]) -> int:
    return sum([len(message.payload) for message in messages])


def encode(message: Message, inbox: str, reply: int) -> tuple[bytes, int]:
    """The protocol line and headers of a message, and its size; payload and CRLF follow on the wire."""
    subject, payload, id, headers = message
    try:
        _checked_subject(subject)
        if id is None:
            if not headers:
                return f"PUB {subject} {inbox}{reply} {len(payload)}\r\n".encode(), len(payload)
            header = "NATS/1.0\r\n"
        elif id.isprintable() and id.strip():
            header = f"NATS/1.0\r\nNats-Msg-Id: {id}\r\n"
        else:
            # A blank one is no id at all to the server, which would store a repeated message twice.
            raise InvalidMessage(f"expected an id of printable characters, not only blanks, got: {id!r}")
        if headers:
            header += _header_lines(headers)
        size = 2 + (len(header) if header.isascii() else len(header.encode()))
        total = size + len(payload)
        return f"HPUB {subject} {inbox}{reply} {size} {total}\r\n{header}\r\n".encode(), total
    except UnicodeEncodeError:
        raise InvalidMessage(f"expected text that UTF-8 can hold, got a lone surrogate in: {subject!r}") from None


def _header_lines(headers: Mapping[str, str | Sequence[str]]) -> str:
    lines = []
    for name, given in headers.items():
        for value in (given,) if isinstance(given, str) else given:
            if _HEADER_NAME.fullmatch(name) is None or "\r" in value or "\n" in value:
                raise InvalidMessage(f"expected a header of visible ASCII and one line, got: {name!r}: {value!r}")
            lines.append(f"{name}: {value}\r\n")
    return "".join(lines)
