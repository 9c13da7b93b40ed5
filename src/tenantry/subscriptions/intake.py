"""Pulls from one durable consumer, and says what became of what it got."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Final, Literal

from tenantry.errors import BrokerError
from tenantry.nats.feed import Answer, Feed, Handed
from tenantry.nats.jetstream import Config, JetStream
from tenantry.subscriptions.durables import renew_durable
from tenantry.subscriptions.parcel import Parcel

if TYPE_CHECKING:
    from tenantry.subscriptions.dead_letters import Death

PULL_SECONDS: Final = 30.0
LATE_SECONDS: Final = 5.0
"""After that a pull that should have ended is taken for lost."""
FIRST_RETRY_SECONDS: Final = 0.05
LONGEST_RETRY_SECONDS: Final = 2.0
REFUSED_SECONDS: Final = 0.5
MOST_PULLED: Final = 256
MOST_BYTES: Final = 8 << 20
MOST_REMEMBERED: Final = 4096
MOST_RECLAIMED: Final = 10_000

_EXPIRED: Final = ("404", "408")
_GONE: Final = ("Consumer Deleted", "Consumer is push based", "No Responders")


Burial = Literal["buried", "stopped", "free"]
"""The lane goes on; it stops there; or the event need not wait any more, and is to be handled."""


class Intake:
    """A source, and a taker."""

    may_retry = True

    def __init__(
        self,
        feed: Feed,
        jetstream: JetStream,
        stream: str,
        consumer: str,
        *,
        handled: dict[int, None],
        ack_wait: float,
        in_order: bool,
        is_ours: bool,
        most_bytes: Callable[[], float],
        is_current: Callable[[], bool],
        offer: Callable[[], None],
        bury: Callable[[Parcel, Death], Awaitable[Burial]],
        gone: Callable[[], None],
    ) -> None:
        self.stream = stream
        self.consumer = consumer
        self.pending = 0
        """How many the consumer has yet to hand out, as far as was last said."""
        self.reached = 0
        """The highest sequence that was handled."""
        self.is_replay = False
        self._until: int | None = None
        self._is_past = False
        self.jetstream = jetstream
        self._feed = feed
        self._ack_wait = ack_wait
        self._in_order = in_order
        self._is_ours = is_ours
        self._most_bytes = most_bytes
        self._is_current = is_current
        self._offer = offer
        self._bury = bury
        self._gone = gone
        self._loop = asyncio.get_running_loop()
        self._ready: deque[Parcel] = deque()
        self._held: dict[int, Parcel] = {}
        """By sequence: what we got and have not said anything final about."""
        self._put_off: dict[int, float] = {}
        """By sequence: when it is to come back."""
        self._done = handled
        """The last ones that were handled: some come again, when a connection breaks or a lane moves."""
        self._wanted = 0
        self._wanted_until = 0.0
        self._most = MOST_PULLED
        self._pull_seconds = PULL_SECONDS
        self._average = 1024.0
        self._is_open = False
        self._is_hushed = False
        self._recovering: asyncio.Task[None] | None = None
        self._searching: asyncio.Task[None] | None = None
        self._emptied = asyncio.Event()

    def beside(self, consumer: str, until: int) -> Intake:
        """Another one for the same work, of what there is up to a sequence."""
        intake = Intake(
            self._feed,
            self.jetstream,
            self.stream,
            consumer,
            handled={},
            ack_wait=self._ack_wait,
            in_order=self._in_order,
            is_ours=True,
            most_bytes=self._most_bytes,
            is_current=self._is_current,
            offer=self._offer,
            bury=self._bury,
            gone=lambda: None,
        )
        intake.is_replay = True
        intake._until = until
        return intake

    @property
    def is_exhausted(self) -> bool:
        """Whether all that it is for has been dealt with."""
        if self._held or self._put_off:
            return False
        return self._is_past or not self.pending

    @property
    def waiting(self) -> int:
        # In order, nothing passes one that is to come back.
        return 0 if self._in_order and self._put_off else len(self._ready)

    @property
    def lag(self) -> int:
        return self.pending + len(self._held) + len(self._put_off)

    # -- opening and closing ----------------------------------------------------------------------------------------

    def open(self, state: Config) -> None:
        """Begin, with a consumer that is in this state."""
        self.pending = int(state.get("num_pending", 0)) + int(state.get("num_ack_pending", 0))
        config: Config = state.get("config") or {}
        self._most = min(MOST_PULLED, config.get("max_batch") or MOST_PULLED)
        self._pull_seconds = min(PULL_SECONDS, (config.get("max_expires") or PULL_SECONDS * 1e9) / 1e9)
        self._is_open = True
        self._is_hushed = False
        self._feed.attach(self)
        self.pull()

    async def hush(self) -> None:
        """Take nothing more; what has not been begun goes back."""
        if self._is_open and not self._is_hushed:
            self._is_hushed = True
            self._return_ready()
            await self._feed.hush(self)
            self._return_ready()

    async def resume(self) -> None:
        """Take in again, beginning with what is still open."""
        if self._is_open and self._is_hushed:
            state = await self.reclaim()
            self.pending = int(state.get("num_pending", 0))
            self._is_hushed = False
            self._wanted = 0
            self._feed.listen(self)
            self.pull()

    @property
    def is_hushed(self) -> bool:
        return self._is_hushed

    async def until_empty(self) -> None:
        """Until what is being handled has ended."""
        while self._held:
            self._emptied.clear()
            await self._emptied.wait()

    def close(self) -> None:
        """Let go of everything, without a word."""
        for task in (self._recovering, self._searching):
            if task is not None:
                task.cancel()
        if self._is_open:
            self._is_open = False
            self._feed.detach(self)
        self._ready.clear()
        self._held.clear()
        self._put_off.clear()

    async def reclaim(self) -> Config:
        """Get back what the consumer has handed out and nobody has, at once instead of when its patience ends.

        The consumer's state, as it was.
        """
        state = await self.jetstream.consumer(self.stream, self.consumer)
        if state is None:
            raise BrokerError(f"there is no consumer {self.consumer} on stream {self.stream}")
        is_one = state["config"].get("max_ack_pending") == 1
        if self._in_order and not is_one and self._is_ours and (state["num_ack_pending"] or state.get("num_waiting")):
            # Handed out again, several come in no certain order, and new ones between them. Only a consumer that
            # begins behind what was acknowledged has them in order.
            self._put_off.clear()
            return await renew_durable(self.jetstream, self.stream, state)
        if state["num_ack_pending"]:
            last = int(state["delivered"]["stream_seq"])
            first = max(int(state["ack_floor"]["stream_seq"]) + 1, last - MOST_RECLAIMED)
            # In order, and one at a time, it can only be the last.
            self._ask_back(state, range(last if is_one and self._in_order else first, last + 1))
        return state

    def _ask_back(self, state: Config, sequences: Iterable[int]) -> None:
        """Say "not now" of them, in the name of whoever had them."""
        number = state["delivered"]["consumer_seq"]
        for sequence in sequences:
            if sequence not in self._held and sequence not in self._put_off:
                reply = f"$JS.ACK.{self.stream}.{self.consumer}.1.{sequence}.{number}.0.0"
                self._feed.say(reply.encode(), b"-NAK")

    def pull(self) -> None:
        """Ask for more if there is room for it."""
        if not self._is_open or self._is_hushed or not self._feed.is_up:
            return
        if self._in_order and not self._is_ours:
            return self._pull_one()
        room = max(1, min(self._most, int(min(MOST_BYTES, self._most_bytes()) / self._average)))
        if self._wanted <= room // 2 and (len(self._held) < room or self._in_order):
            self._feed.pull(self, room - self._wanted, self._pull_seconds)
            self._wanted = room
            self._wanted_until = self._loop.time() + self._pull_seconds + LATE_SECONDS

    def _pull_one(self) -> None:
        """Of a consumer that is not ours, and may hand out several: one at a time, so that they stay in order."""
        now = self._loop.time()
        if self._wanted <= 0 and not self._held and all(due <= now for due in self._put_off.values()):
            self._feed.pull(self, 1, self._pull_seconds)
            self._wanted = 1
            self._wanted_until = now + self._pull_seconds + LATE_SECONDS

    def keep(self, now: float) -> None:
        """Called every now and then: what takes long is said to take long, and what was lost is asked for again."""
        if not self._is_open or not self._feed.is_up:
            return
        if now > self._wanted_until:
            self._wanted = 0
        self.pull()
        if self._put_off and min(self._put_off.values()) + LATE_SECONDS < now and not self._is_searching:
            self._searching = asyncio.create_task(self._search(), name=f"search of {self.consumer}")
        patience = self._ack_wait / 3
        for parcel in self._held.values():
            if now - parcel.extended_at > patience and self._is_current():
                parcel.extended_at = now
                self._feed.say(parcel.message.reply, b"+WPI")

    @property
    def _is_searching(self) -> bool:
        return self._searching is not None and not self._searching.done()

    async def _search(self) -> None:
        """What was to come back has not: the server has forgotten when, or it is not in the stream any more."""
        with suppress(BrokerError):
            state = await self.jetstream.consumer(self.stream, self.consumer)
            if state is None:
                return
            now = self._loop.time()
            late = [sequence for sequence, due in self._put_off.items() if due + LATE_SECONDS < now]
            for sequence in late:
                del self._put_off[sequence]
            if state["num_ack_pending"] > len(self._held):
                self._ask_back(state, late)
                self._put_off.update(dict.fromkeys(late, now))
            self._offer()

    # -- what the feed says -----------------------------------------------------------------------------------------

    def take(self, message: Handed) -> None:
        self._wanted -= 1
        self.pending = message.pending
        sequence = message.sequence
        if self._is_hushed:
            # In order, whoever goes on asks for all that is open: to give back one by one would mix it up.
            return None if self._in_order else self._feed.say(message.reply, b"-NAK")
        if sequence in self._done:
            # It was handled, and that we said so was lost.
            self._feed.acknowledge(message.reply)
            return self.pull()
        if (held := self._held.get(sequence)) is not None:
            held.message = message
            return None
        if self._until is not None and sequence > self._until:
            self._is_past = True
            return None
        self._put_off.pop(sequence, None)
        self._average += (len(message.payload) - self._average) / 16
        parcel = Parcel(message, self, self._loop.time())
        self._held[sequence] = parcel
        self._ready.append(parcel)
        if self._in_order and len(self._ready) > 1 and self._ready[-2].sequence > sequence:
            self._ready = deque(sorted(self._ready, key=lambda each: each.sequence))
        if self._wanted < MOST_PULLED // 4:
            self.pull()
        self._offer()
        return None

    def told(self, answer: Answer) -> None:
        if answer.status == "503" or any(word in answer.reason for word in _GONE):
            self._wanted = 0
            return self._gone()
        unserved = answer.headers.get("Nats-Pending-Messages")
        self._wanted = max(0, self._wanted - int(unserved)) if unserved else 0
        if answer.status in _EXPIRED:
            return self.pull()
        # Whatever else it has against it, it is not asked again at once.
        self._wanted, self._wanted_until = self._most, self._loop.time() + REFUSED_SECONDS
        return None

    def interrupted(self) -> None:
        self._wanted = 0

    def restored(self) -> None:
        """What was on its way is lost, and the server may not know any more what was to wait, and how long."""
        self._wanted = 0
        self._recovering = asyncio.create_task(self._recover(), name=f"recovery of {self.consumer}")

    async def _recover(self) -> None:
        pause = FIRST_RETRY_SECONDS
        while self._is_open and self._feed.is_up:
            try:
                await self.reclaim()
                return self.pull()
            except BrokerError:
                await asyncio.sleep(pause)
                pause = min(2 * pause, LONGEST_RETRY_SECONDS)

    # -- what became of a parcel ------------------------------------------------------------------------------------

    def next(self) -> Parcel:
        return self._ready.popleft()

    def put_first(self, parcels: list[Parcel]) -> None:
        """They come next, as they are."""
        self._ready.extendleft(reversed(parcels))
        if self._is_hushed:
            self._return_ready()

    def done(self, parcel: Parcel) -> None:
        is_held = self._let_go(parcel)
        if not self._is_current():
            return
        # Also if the consumer has gone meanwhile: it may come again through another.
        self._done[parcel.sequence] = None
        self.reached = max(self.reached, parcel.sequence)
        if len(self._done) > MOST_REMEMBERED:
            del self._done[next(iter(self._done))]
        if is_held:
            self._feed.acknowledge(parcel.message.reply)
            if self._wanted < MOST_PULLED // 4:
                self.pull()

    def put_off(self, parcel: Parcel, seconds: float) -> None:
        if self._let_go(parcel):
            self._put_off[parcel.sequence] = self._loop.time() + seconds
            self._feed.say(parcel.message.reply, b'-NAK {"delay":%d}' % (seconds * 1_000_000_000))

    def return_unhandled(self, parcel: Parcel) -> None:
        if self._let_go(parcel):
            self._feed.say(parcel.message.reply, b"-NAK")

    def drop(self, parcel: Parcel) -> None:
        """Nothing is said of it: its lane stops here."""
        self._held.pop(parcel.sequence, None)

    async def bury(self, parcel: Parcel, death: Death) -> None:
        match await self._bury(parcel, death):
            case "buried":
                self.done(parcel)
            case "stopped":
                self.drop(parcel)
            case "free":
                self.put_first([parcel])

    def _let_go(self, parcel: Parcel) -> bool:
        """Whether anything may be said of it: not by somebody who may have been replaced."""
        found = self._held.pop(parcel.sequence, None)
        if not self._held:
            self._emptied.set()
        return found is not None and self._is_current()

    def _return_ready(self) -> None:
        while self._ready:
            parcel = self._ready.popleft()
            if self._in_order:
                self._let_go(parcel)
            else:
                self.return_unhandled(parcel)
