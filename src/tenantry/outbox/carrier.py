"""Carries frames to NATS over one connection, and knows which of them were answered. It never waits.

Each batch of a lane is a flight of its own: a stream that does not answer holds up nobody else's.
"""

from __future__ import annotations

import random
import time
from bisect import bisect_right
from collections.abc import Callable
from concurrent.futures import Executor, Future
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

import nats_bulk
from nats_bulk.connection import Answer
from nats_bulk.publish import PublishError, error_in
from nats_bulk.wire import CRLF, Acknowledgements, Delivery, Refusal
from tenantry.errors import BrokerError, BrokerUnreachable
from tenantry.nats.connections import Broker, connect_bulk
from tenantry.telemetry import signal

CONNECTED = signal("outbox.connected", "The relay has a connection to NATS.", "account")
UNREACHABLE = signal(
    "outbox.broker_unreachable",
    "NATS cannot be reached; what was emitted waits.",
    "account",
    "seconds",
    "error",
    level="warning",
)

ANSWER_SECONDS: Final = 5.0
SILENT_SECONDS: Final = 1.0
LOST_SECONDS: Final = 2.0
FIRST_PAUSE: Final = 0.1
LONGEST_PAUSE: Final = 5.0


@dataclass(slots=True, eq=False)
class Flight:
    """Messages of one lane that are on their way, and as many answers as are awaited, under consecutive numbers."""

    subjects: str
    events: int
    first: int
    count: int
    sent_at: float = field(default_factory=time.monotonic)
    answered: int = 0
    sequence: int = 0
    """The highest stream sequence that was acknowledged."""
    error: PublishError | None = None
    """Why the first of the messages that were not stored was not."""
    error_at: int = 0

    @property
    def is_complete(self) -> bool:
        return self.answered == self.count

    def refuse(self, error: PublishError, at: int) -> None:
        """One of the messages was answered with an error."""
        self.answered += 1
        if self.error is None or at < self.error_at:
            self.error, self.error_at = error, at

    def give_up(self, error: PublishError) -> None:
        """There will be no more answers."""
        if not self.is_complete:
            self.answered = self.count
            self.error = self.error or error


class Carrier:
    """One connection. While it is not there, `is_ready` says so, and it comes back by itself."""

    def __init__(self, broker: Broker, account: str, executor: Executor, wake: Callable[[], None]) -> None:
        self.account = account
        self.used_at = time.monotonic()
        self.refusal: str = ""
        """Why NATS does not want us, as opposed to not being there."""
        self._broker = broker
        self._executor = executor
        self._wake = wake
        self._connection: nats_bulk.Connection | None = None
        self._connecting: Future[nats_bulk.Connection] | None = None
        self._failures = 0
        self._retry_at = 0.0
        self._lost_at = 0.0
        self._flights: list[Flight] = []
        self._asked_at = 0.0
        self.generation = 0
        """How often it has been connected."""

    @property
    def is_ready(self) -> bool:
        """Whether frames can be sent now; if not, it sees to it that this changes."""
        if self._connection is None:
            self._connect()
        return self._connection is not None

    @property
    def in_air(self) -> int:
        """How many events."""
        return sum(flight.events for flight in self._flights)

    @property
    def inbox(self) -> str:
        assert self._connection is not None
        return self._connection.inbox

    @property
    def max_payload(self) -> int:
        assert self._connection is not None
        return self._connection.max_payload

    def fileno(self) -> int | None:
        return self._connection.fileno() if self._connection is not None else None

    def reserve(self, count: int) -> int:
        """Numbers for messages that are about to be written."""
        assert self._connection is not None
        return self._connection.new_replies(count)

    def send(self, frames: bytes, subjects: str, events: int, first: int) -> Flight:
        """Send frames whose replies are numbered from `first` on. A connection that breaks ends the flight."""
        return self._send(frames, Flight(subjects, events, first, events))

    def send_chained(self, frames: bytes, subjects: str, events: int, reply: int, last_size: int) -> Flight:
        """Send frames without replies, of which none is stored unless all before it are: so the last speaks for all."""
        message = len(frames) - last_size - len(CRLF)
        sizes = frames.rindex(b" ", 0, frames.rindex(b" ", 0, message)) + 1
        asked = f"{self.inbox}{reply} ".encode()
        return self._send(b"".join((frames[:sizes], asked, frames[sizes:])), Flight(subjects, events, reply, 1))

    def _send(self, frames: bytes, flight: Flight) -> Flight:
        assert self._connection is not None
        self.used_at = time.monotonic()
        self._flights.append(flight)
        try:
            self._connection.send(frames)
        except nats_bulk.ConnectionLost as lost:
            self._lose(lost)
        return flight

    def collect(self, timeout: float = 0.0) -> None:
        """Take what answers there are."""
        if self._connection is None:
            return
        try:
            while answers := self._connection.receive(timeout):
                for answer in answers:
                    self._take(answer)
                timeout = 0.0
        except nats_bulk.BulkError as lost:
            return self._lose(lost)
        now = time.monotonic()
        self._require_life(now)
        for flight in self._flights:
            if now - flight.sent_at > ANSWER_SECONDS:
                flight.give_up(PublishError(504, 0, f"no answer within {ANSWER_SECONDS:g} s", certain=False))
        self._flights = [flight for flight in self._flights if not flight.is_complete]

    def _require_life(self, now: float) -> None:
        """Silence is not death: a server that is silent for long is asked, and lost if it does not answer even that."""
        if self._connection is None or not self._flights:
            self._asked_at = 0.0
            return
        silent_since = max(self._connection.heard_at, self._flights[0].sent_at)
        if now - silent_since < SILENT_SECONDS or self._connection.heard_at > self._asked_at > 0:
            self._asked_at = 0.0
        elif not self._asked_at:
            self._asked_at = now
            try:
                self._connection.ping()
            except nats_bulk.ConnectionLost as lost:
                self._lose(lost)
        elif now - self._asked_at > LOST_SECONDS:
            self._asked_at = 0.0
            self._lose(nats_bulk.ConnectionLost("the server does not answer"))

    def close(self) -> None:
        self._drop(PublishError(499, 0, "the relay ended", certain=False))
        if self._connecting is not None:
            self._connecting.add_done_callback(_close_when_connected)

    def _take(self, answer: Answer) -> None:
        if isinstance(answer, Acknowledgements):
            self._acknowledge(answer)
        elif isinstance(answer, Delivery):
            self._take_error(answer)
        elif isinstance(answer, Refusal):
            for flight in self._flights:
                flight.give_up(PublishError(403, 0, answer.reason))

    def _acknowledge(self, run: Acknowledgements) -> None:
        flights = self._flights
        firsts = [flight.first for flight in flights]
        flight: Flight | None = None
        low = high = -1
        for reply, sequence in zip(run.replies, run.sequences, strict=True):
            if not low <= reply < high:
                place = bisect_right(firsts, reply) - 1
                flight = flights[place] if place >= 0 else None
                if flight is not None and reply < flight.first + flight.count:
                    low, high = flight.first, flight.first + flight.count
                else:
                    # The late answer to a flight that was given up.
                    flight, low, high = None, -1, -1
                    continue
            assert flight is not None
            flight.answered += 1
            if sequence > flight.sequence:
                flight.sequence = sequence

    def _take_error(self, answer: Delivery) -> None:
        assert self._connection is not None
        number = answer.subject[len(self._connection.inbox) :]
        if number.isdigit():
            for flight in self._flights:
                if flight.first <= int(number) < flight.first + flight.count:
                    flight.refuse(error_in(answer, flight.subjects), int(number) - flight.first)

    def _connect(self) -> None:
        if self._connecting is None and time.monotonic() >= self._retry_at:
            # Elsewhere, for it may take seconds.
            self._connecting = self._executor.submit(connect_bulk, self._broker, "tenantry-relay", reconnect_for=0)
            self._connecting.add_done_callback(lambda _: self._wake())
        if self._connecting is None or not self._connecting.done():
            return
        connecting, self._connecting = self._connecting, None
        try:
            self._connection = connecting.result()
        except (BrokerError, nats_bulk.BulkError) as problem:
            self.refusal = str(problem) if not _is_unreachable(problem) else ""
            self._back_off(problem)
        else:
            self.refusal, self._failures, self._lost_at = "", 0, 0.0
            self.generation += 1
            CONNECTED.emit(account=self.account)

    def _lose(self, lost: nats_bulk.BulkError) -> None:
        self._drop(PublishError(503, 0, str(lost), certain=False))
        self._back_off(lost)

    def _drop(self, error: PublishError) -> None:
        for flight in self._flights:
            flight.give_up(error)
        self._flights = []
        if self._connection is not None:
            # What is still in the socket must not arrive when somebody else has published it long since.
            self._connection.abort()
            self._connection = None

    def _back_off(self, problem: Exception) -> None:
        now = time.monotonic()
        self._lost_at = self._lost_at or now
        pause = min(LONGEST_PAUSE, FIRST_PAUSE * 2**self._failures) * random.uniform(0.5, 1.0)
        self._failures += 1
        self._retry_at = now + pause
        UNREACHABLE.emit(account=self.account, seconds=now - self._lost_at, error=problem)


def _is_unreachable(problem: Exception) -> bool:
    return isinstance(problem, BrokerUnreachable | nats_bulk.ConnectionLost)


def _close_when_connected(connecting: Future[nats_bulk.Connection]) -> None:
    with suppress(Exception):
        connecting.result().close()
