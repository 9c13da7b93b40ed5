"""Publishes to one broker. What comes in the same instant goes out in one write; each request has answers of its own.

A stream that does not answer holds up nobody but those who wait for it, and these not beyond their deadline.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import Final

from nats_bulk import PublishError
from nats_bulk.publish import error_in
from nats_bulk.wire import Acknowledgements, Delivery, Refusal
from tenantry.errors import EventTooLarge
from tenantry.ingest.reading import Message
from tenantry.nats.connections import Broker
from tenantry.nats.kept_link import KeptLink
from tenantry.nats.link import Link
from tenantry.telemetry import signal

LINKED = signal("ingest.linked", "Ingest is connected to NATS.", "connection")
UNLINKED = signal(
    "ingest.unlinked", "Ingest has no connection to NATS; it tries again.", "connection", "reason", level="warning"
)

ANSWER_SECONDS: Final = 5.0
WATCH_SECONDS: Final = 0.25
ENOUGH: Final = 32
# Silence is not death: a server that is silent for so long is asked, and lost if it does not answer that either.
SILENT_SECONDS: Final = 1.0
LOST_SECONDS: Final = 2.0


class Outcome:
    """What became of the messages of one request."""

    __slots__ = ("deadline", "duplicates", "errors", "first_reply", "left", "messages", "settled")

    def __init__(self, messages: Sequence[Message], first_reply: int, deadline: float) -> None:
        self.messages = messages
        self.first_reply = first_reply
        self.deadline = deadline
        self.left = len(messages)
        self.duplicates = 0
        self.errors: dict[int, PublishError] = {}
        """Why, for each position that was not stored, or may not have been."""
        self.settled: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def settle(self, count: int) -> None:
        self.left -= count
        if not self.left:
            self.messages = ()
            if not self.settled.done():
                self.settled.set_result(None)


class Publisher(KeptLink):
    """A connection to a broker that is kept, and what waits for answers there."""

    def __init__(self, broker: Broker, name: str, *, answer_seconds: float = ANSWER_SECONDS) -> None:
        self.used_at = 0.0
        self.generation = 0
        """How often it has been connected."""
        self._answer_seconds = answer_seconds
        self._next_reply = 0
        self._waiting: dict[int, Outcome] = {}
        self._due: deque[Outcome] = deque()
        self._unsent: list[bytes] = []
        self._watching: asyncio.TimerHandle | None = None
        self._asked_at: float | None = None
        super().__init__(broker, name)

    @property
    def is_idle(self) -> bool:
        return not self._waiting

    async def close(self) -> None:
        if self._watching:
            self._watching.cancel()
        await super().close()

    async def publish(self, messages: Sequence[Message]) -> Outcome:
        """Returns when each message is acknowledged, refused, or overdue. If it raises, nothing was sent."""
        now = self.used_at = self._loop.time()
        first, self._next_reply = self._next_reply, self._next_reply + len(messages)
        outcome = Outcome(messages, first, now + self._answer_seconds)
        if self._link is None:
            self._fail_all(outcome, PublishError(503, 0, "there is no connection to NATS"))
            return outcome
        self._send(self._link, outcome)
        await outcome.settled
        return outcome

    def _send(self, link: Link, outcome: Outcome) -> None:
        inbox, largest, first = link.inbox, link.max_payload, outcome.first_reply
        frames: list[bytes] = []
        for reply, message in enumerate(outcome.messages, first):
            _, _, subject, header, document, size, _ = message
            if size > largest:
                most = f"{largest:,} bytes with its headers"
                raise EventTooLarge(f"expected an event of at most {most}, got: {size:,}", reply - first)
            frame = f"HPUB {subject} {inbox}{reply} {len(header)} {size}\r\n".encode()
            frames.append(b"%b%b%b\r\n" % (frame, header, document))
        self._waiting.update(dict.fromkeys(range(first, first + outcome.left), outcome))
        self._due.append(outcome)
        if not self._unsent:
            self._loop.call_soon(self._flush)
        self._unsent += frames
        if len(frames) >= ENOUGH:
            # So many need no company, and the server can begin while we read the next ones.
            self._flush()
        if self._watching is None:
            # Before that, nobody waited for anything.
            link.heard_at = max(link.heard_at, self._loop.time())
            self._watching = self._loop.call_later(WATCH_SECONDS, self._watch)

    def _flush(self) -> None:
        data, self._unsent = b"".join(self._unsent), []
        if self._link is not None and data:
            self._link.write(data)

    # -- what comes back --------------------------------------------------------------------------------------------

    def acknowledged(self, run: Acknowledgements) -> None:
        take = self._waiting.pop
        for reply, duplicate in zip(run.replies, run.duplicates, strict=True):
            outcome = take(reply, None)
            # One that nobody waits for is late: it was given up before.
            if outcome is not None:
                outcome.duplicates += duplicate
                outcome.settle(1)

    def answered(self, answer: Delivery) -> None:
        assert self._link is not None
        number = answer.subject[len(self._link.inbox) :]
        if number.isdigit() and (outcome := self._waiting.get(int(number))):
            position = int(number) - outcome.first_reply
            self._fail(outcome, position, error_in(answer, outcome.messages[position].subject))

    def refused(self, refusal: Refusal) -> None:
        # It names the subject only, and holds for every message to it.
        for reply, outcome in list(self._waiting.items()):
            position = reply - outcome.first_reply
            if refusal.is_about(outcome.messages[position].subject):
                self._fail(outcome, position, PublishError(403, 0, refusal.reason))

    def linked(self) -> None:
        self.generation += 1
        LINKED.emit(connection=self._name)

    def unlinked(self, reason: str) -> None:
        UNLINKED.emit(connection=self._name, reason=reason)

    def lost(self, reason: str) -> None:
        super().lost(reason)
        self._unsent.clear()
        for reply, outcome in list(self._waiting.items()):
            self._fail(outcome, reply - outcome.first_reply, PublishError(503, 0, reason, certain=False))

    def _fail(self, outcome: Outcome, position: int, error: PublishError) -> None:
        self._waiting.pop(outcome.first_reply + position, None)
        outcome.errors[position] = error
        outcome.settle(1)

    def _fail_all(self, outcome: Outcome, error: PublishError) -> None:
        for position in range(outcome.left):
            self._fail(outcome, position, error)

    # -- what does not come back ------------------------------------------------------------------------------------

    def _watch(self) -> None:
        now = self._loop.time()
        while self._due and (not self._due[0].left or self._due[0].deadline <= now):
            self._give_up(self._due.popleft())
        if self._link is not None and self._waiting:
            self._require_life(self._link, now)
        else:
            self._asked_at = None
        self._watching = self._loop.call_later(WATCH_SECONDS, self._watch) if self._due else None

    def _give_up(self, outcome: Outcome) -> None:
        late = PublishError(504, 0, f"no acknowledgement within {self._answer_seconds} s", certain=False)
        for reply in range(outcome.first_reply, outcome.first_reply + len(outcome.messages)):
            if reply in self._waiting:
                self._fail(outcome, reply - outcome.first_reply, late)

    def _require_life(self, link: Link, now: float) -> None:
        if now - link.heard_at < SILENT_SECONDS:
            self._asked_at = None
        elif self._asked_at is None:
            self._asked_at = now
            link.ask_for_life()
        elif now - self._asked_at > LOST_SECONDS:
            self._asked_at = None
            link.abort(f"the server does not answer for {SILENT_SECONDS + LOST_SECONDS} s")
