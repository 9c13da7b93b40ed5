"""A lane while a relay carries it: what was sent, what was answered, what is written down."""

from __future__ import annotations

import random
from collections import deque
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Final

from nats_bulk import PublishError
from tenantry.outbox.carrier import Flight
from tenantry.outbox.log import Cursor, Move, Position
from tenantry.tenants.lanes import Lane

FIRST_PAUSE: Final = 0.1
LONGEST_PAUSE: Final = 30.0
FLIGHTS: Final = 3
"""So many batches of a lane are on their way at once: while one is answered, the next is written."""


@dataclass(slots=True)
class Track:
    cursor: Cursor
    lane: Lane
    is_chained: bool
    """Whether each event names the one before it, so that the stream takes none that follows something else."""
    horizon: int
    sent: Position
    answered: Position
    saved: Position
    sequence: int
    """Where the stream ended when we last heard of it; 0 if that is not known."""
    attempts: int
    is_inspected: bool
    """Whether it is certain that the stream has nothing beyond `answered` but what is on its way."""
    flights: deque[tuple[Flight, Position]] = field(default_factory=deque)
    is_drained: bool = False
    is_careful: bool = False
    """Whether one event is sent alone, to see if it is taken. A stream that comes back while several are on their way
    would take the later ones and not the first."""
    inspection: Future[tuple[set[str], int]] | None = None
    previous: str | None = None
    """The last event that was sent and may not be answered yet."""
    trouble: PublishError | None = None
    generation: int = -1
    """The connection with which it was carried last."""
    carried: int = 0
    """Events that were answered since that was last asked."""
    retry_at: float = 0.0
    failures: int = 0
    """In a row, of those that are nobody's fault; they are not attempts."""

    @classmethod
    def of(cls, cursor: Cursor, lane: Lane, horizon: int, is_chained: bool) -> Track:
        place = Position(cursor.ticket, cursor.id)
        is_same = cursor.stream == stream_of(lane)
        return cls(
            cursor,
            lane,
            is_chained,
            horizon,
            sent=place,
            answered=place,
            saved=place,
            sequence=cursor.sequence if is_same else 0,
            attempts=cursor.attempts,
            is_inspected=cursor.is_known,
            is_careful=not cursor.is_known,
        )

    @property
    def number(self) -> int:
        return self.cursor.lane

    @property
    def tenant(self) -> str:
        return self.cursor.tenant_id

    def can_send(self, now: float) -> bool:
        return (
            self.is_inspected
            and not self.is_drained
            and self.trouble is None
            and self.retry_at <= now
            and len(self.flights) < (1 if self.is_careful else FLIGHTS)
        )

    def is_waiting_for_answers(self, now: float) -> bool:
        """Whether it would send more, if it had not so much on its way already."""
        is_willing = not (self.is_drained or self.is_careful) and self.retry_at <= now
        return is_willing and len(self.flights) >= FLIGHTS

    def look_up_to(self, horizon: int) -> None:
        if horizon > self.horizon:
            self.horizon, self.is_drained = horizon, False

    def take_answers(self) -> None:
        """Go as far as batches were answered in full; the first that was not is a trouble."""
        while self.flights and self.flights[0][0].is_complete:
            flight, place = self.flights.popleft()
            if flight.error is not None:
                self.doubt(flight.error)
                return
            self.answered = place
            self.carried += flight.events
            self.sequence = max(self.sequence, flight.sequence)
            self.failures = 0
            self.is_careful = False

    def take_count(self) -> int:
        count, self.carried = self.carried, 0
        return count

    def doubt(self, trouble: PublishError | None) -> None:
        """Start over from what is certain, once the broker has been asked."""
        self.trouble = trouble
        self.flights.clear()
        self.sent, self.previous = self.answered, None
        self.is_inspected = self.is_drained = False
        self.is_careful = True

    def skip_to(self, place: Position) -> None:
        self.sent = self.answered = place

    def remember(self, before: Track) -> None:
        """What was known of the lane when it was let go of unsettled."""
        self.is_inspected, self.is_careful = False, True
        self.failures = before.failures
        self.retry_at = max(self.retry_at, before.retry_at)

    def move(self) -> Move:
        return Move(self.number, *self.answered, stream_of(self.lane), self.sequence, self.attempts + 1)


def stream_of(lane: Lane) -> str:
    """Sequences are comparable as long as this is the same."""
    return f"{lane.account}/{lane.stream}"


def pause_after(failures: int) -> float:
    return float(min(LONGEST_PAUSE, FIRST_PAUSE * 2**failures) * random.uniform(0.5, 1.0))
