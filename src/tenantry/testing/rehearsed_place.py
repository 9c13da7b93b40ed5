"""A subscriber and a part of a tenant's events in a rehearsal, held and handled as a worker does it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Final, cast

from tenantry.application import Context, Subscriber
from tenantry.nats.connections import Broker
from tenantry.nats.feed import Handed
from tenantry.outbox.emit_drivers import is_connection
from tenantry.subscriptions.demand import Wanted
from tenantry.subscriptions.handling import Handling
from tenantry.subscriptions.holding import Holding
from tenantry.subscriptions.intake import Intake
from tenantry.subscriptions.once import remember
from tenantry.subscriptions.spreading import Partition
from tenantry.tenants.lanes import Lane
from tenantry.testing.outcome import Outcome
from tenantry.testing.rehearsed_lane import RehearsedLane
from tenantry.testing.rehearsed_letters import RehearsedLetters

NAMESPACE: Final = "tenantry"
WORKER: Final = "rehearsal"
FENCE: Final = 1
MOST_LETTERS: Final = 100_000

Remembered = set[tuple[str, str, str]]


class Place:
    """Only the lane and the dead letters are not a worker's own."""

    def __init__(
        self,
        partition: Partition,
        subscriber: Subscriber,
        letters: RehearsedLetters,
        threads: ThreadPoolExecutor,
        remembered: Remembered,
    ) -> None:
        self._partition = partition
        self._subscriber = subscriber
        self._letters = letters
        self._remembered = remembered
        self._noted: Remembered = set()
        """What the handler that runs has asked about: remembered if all goes well, as by a transaction."""
        self._holding = Holding(
            partition,
            _wanted(partition, subscriber),
            FENCE,
            letters=letters,
            offer=lambda _: None,
            is_current=lambda: True,
        )
        self._lane = RehearsedLane(subscriber, self._holding.bury)
        self._holding.intake = cast(Intake, self._lane)
        self._handling = Handling(self._watched(), WORKER, threads, self._remember)

    def add(self, message: Handed, outcome: Outcome) -> None:
        if self._holding.running:
            raise RuntimeError(
                f"the subscriber {self._subscriber.name} is still at an event of {self._partition.tenant}: wait until "
                "one delivery has returned before the next, and deliver nothing to a handler from within it"
            )
        self._lane.add(message, outcome)

    async def handle(self) -> None:
        """All that can be handled now, until nothing is left or the rest is held back."""
        holding = self._holding
        while holding.is_ready:
            parcels = holding.next()
            handled = holding.tally.handled
            self._noted.clear()
            try:
                await self._handling.handle(holding, parcels)
            finally:
                holding.finished(parcels)
            if holding.tally.handled > handled:
                self._remembered |= self._noted
            # What came of dead letters is written down beside, and may let others go on.
            await holding.redriving.until_written()
        for sequence, outcome in self._lane.outcomes.items():
            letter = self._letters.find(self._partition, sequence)
            if letter is not None:
                outcome.dead_letter = letter
        self._lane.mark_waiting()

    async def redrive(self) -> None:
        letters = await self._letters.asked_for([self._partition], MOST_LETTERS)
        self._holding.redriving.add(letters)
        await self.handle()
        for sequence in (letter.message.sequence for letter in letters):
            if self._letters.find(self._partition, sequence) is None:
                outcome = self._lane.outcomes[sequence]
                outcome.handled, outcome.dead_letter = True, None

    def _watched(self) -> Subscriber:
        """The subscriber, with a note of each attempt in the outcomes."""
        function: Callable[..., Any] = self._subscriber.function

        async def call(given: Any, context: Context) -> None:
            with self._attempt(given, context):
                await function(given, context)

        def call_blocking(given: Any, context: Context) -> None:
            with self._attempt(given, context):
                function(given, context)

        return replace(self._subscriber, function=call if self._subscriber.is_async else call_blocking)

    @contextmanager
    def _attempt(self, given: Any, context: Context) -> Iterator[None]:
        events = given if self._subscriber.batch > 1 else [given]
        outcomes = [self._lane.outcomes[event.sequence] for event in events]
        for outcome in outcomes:
            outcome.attempts, outcome.error = context.attempt, None
        try:
            yield
        except Exception as problem:
            for outcome in outcomes:
                outcome.error = problem
            raise

    def _remember(self, connection: Any, context: Context, event_id: str) -> Any:
        """In the connection's database, if it is one to a database, else in memory."""
        if is_connection(connection):
            return remember(connection, context, event_id)
        asked = (context.service, context.tenant, event_id)
        is_first = asked not in self._remembered | self._noted
        self._noted.add(asked)
        return _later(is_first) if self._subscriber.is_async else is_first


async def _later(answer: bool) -> bool:
    """A handler that is async has a connection that is, too, and must await what it answers."""
    return answer


def _wanted(partition: Partition, subscriber: Subscriber) -> Wanted:
    lane = Lane(
        tenant=partition.tenant,
        channel=subscriber.channel,
        stream="REHEARSAL",
        prefix=f"{NAMESPACE}.tenants.{partition.tenant}.{subscriber.channel}",
        broker=Broker("nats://rehearsal.invalid"),
        account="",
    )
    return Wanted(subscriber, lane, identity=None, plan="", weight=1.0, consumer="", config=None)
