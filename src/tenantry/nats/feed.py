"""What the consumers of one account hand out, over one connection that is made anew when it breaks.

Pulls, acknowledgements and requests of the same instant go out in one write. An acknowledgement that the server may not
have read when the connection broke is sent again: without it, the server would wait for it until its patience ends.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import Final, NamedTuple, Protocol

from nats_bulk import parse_headers
from nats_bulk.wire import PING, ConsumedMessages, Delivery, Refusal
from tenantry.errors import BrokerUnreachable
from tenantry.nats.connections import Broker
from tenantry.nats.kept_link import KeptLink
from tenantry.telemetry import signal

LINKED = signal("nats.feed_linked", "What consumers hand out can be received.", "connection")
UNLINKED = signal(
    "nats.feed_unlinked",
    "Nothing of what consumers hand out can be received; it is tried again.",
    "connection",
    "reason",
    level="warning",
)

REFUSED = signal(
    "nats.feed_refused", "NATS would not let us do something on a feed.", "connection", "reason", level="warning"
)

ANSWER_SECONDS: Final = 10.0
ALIVE_SECONDS: Final = 10.0
"""A server that has said nothing for so long is asked, and lost if it says nothing for as long again."""

NO_RESPONDERS: Final = "503"

_PULLED: Final = b"p."


class Answer(NamedTuple):
    data: bytes
    header: bytes

    @property
    def status(self) -> str:
        """Of a message that is no answer but says why there is none."""
        return self.header[9:12].decode() if self.header.startswith(b"NATS/1.0 ") else ""

    @property
    def reason(self) -> str:
        return self.header.partition(b"\r\n")[0][13:].decode(errors="replace")

    @property
    def headers(self) -> dict[str, str]:
        return {name: values[0] for name, values in parse_headers(self.header).items()} if self.header else {}


class Handed(NamedTuple):
    """A message that a consumer handed out."""

    subject: bytes
    header: bytes
    payload: bytes
    reply: bytes
    """Where to acknowledge it."""
    sequence: int
    deliveries: int
    """How often it has been handed out, this time included."""
    stored_at: int
    """Nanoseconds since 1970."""
    pending: int
    """How many the consumer has yet to hand out for the first time."""


class Taker(Protocol):
    """Who pulls from one consumer."""

    stream: str
    consumer: str

    def take(self, message: Handed) -> None: ...

    def told(self, answer: Answer) -> None:
        """The server says something about a pull: that it has ended, or cannot be."""

    def interrupted(self) -> None:
        """The connection broke: what was pulled may never come."""

    def restored(self) -> None: ...


class Feed(KeptLink):
    """A connection for all consumers of an account."""

    def __init__(self, broker: Broker, name: str) -> None:
        self._takers: dict[tuple[bytes, bytes], Taker] = {}
        self._by_number: dict[int, Taker] = {}
        self._numbers: dict[Taker, int] = {}
        self._asked: dict[bytes, asyncio.Future[Answer]] = {}
        self._unsent: list[bytes] = []
        self._unread: list[bytes] = []
        """Acknowledgements that the server may not have read, since the last ping."""
        self._pings: deque[list[bytes] | asyncio.Future[None]] = deque()
        """What each ping that is unanswered makes sure of: acknowledgements before it, or somebody who waits for it."""
        self._next = 1
        super().__init__(broker, name)
        self._watching = asyncio.create_task(self._watch(), name=f"{name} watch")

    @property
    def is_up(self) -> bool:
        return self._link is not None

    @property
    def is_used(self) -> bool:
        return bool(self._numbers or self._asked)

    async def close(self) -> None:
        self._watching.cancel()
        self._flush()
        await super().close()

    # -- consumers --------------------------------------------------------------------------------------------------

    def attach(self, taker: Taker) -> None:
        """From now on the taker gets what its consumer hands out."""
        self._next += 1
        self._takers[taker.stream.encode(), taker.consumer.encode()] = taker
        self._by_number[self._next], self._numbers[taker] = taker, self._next
        self.listen(taker)

    def listen(self, taker: Taker) -> None:
        """Each has a subscription of its own: when that ends, the server forgets what was pulled for it."""
        if self._link is not None:
            self._write([b"SUB %b %d\r\n" % (self._inbox_of(taker), self._numbers[taker])])

    async def hush(self, taker: Taker) -> None:
        """Pull no more; when this returns, all that was on its way has come."""
        if self._link is not None:
            self._write([b"UNSUB %d\r\n" % self._numbers[taker]])
            await self.settle()

    def detach(self, taker: Taker) -> None:
        if self._link is not None:
            self._write([b"UNSUB %d\r\n" % self._numbers[taker]])
        del self._by_number[self._numbers.pop(taker)]
        place = (taker.stream.encode(), taker.consumer.encode())
        if self._takers.get(place) is taker:
            del self._takers[place]

    def pull(self, taker: Taker, batch: int, seconds: float) -> None:
        """Ask for so many messages; the server forgets about it after so many seconds, and says so."""
        if self._link is None:
            return
        body = b'{"batch":%d,"expires":%d}' % (batch, seconds * 1_000_000_000)
        place = f"{taker.stream}.{taker.consumer}".encode()
        self._send(b"PUB $JS.API.CONSUMER.MSG.NEXT.%b %b" % (place, self._inbox_of(taker)), body)

    def acknowledge(self, reply: bytes) -> None:
        """It has been dealt with; that is said again if the connection breaks before it was read."""
        frame = b"PUB %b 4\r\n+ACK\r\n" % reply
        self._unread.append(frame)
        if not self._unsent:
            self._loop.call_soon(self._flush)
        self._unsent.append(frame)

    def say(self, reply: bytes, word: bytes) -> None:
        """Anything else about a message: not now, or still at it."""
        self._send(b"PUB %b" % reply, word)

    async def settle(self) -> None:
        """Returns when the server has read all that was written before, and we what it had sent until then."""
        if self._link is not None:
            settled: asyncio.Future[None] = self._loop.create_future()
            self._ping(settled)
            await settled

    # -- requests ---------------------------------------------------------------------------------------------------

    async def request(
        self,
        subject: str,
        payload: bytes = b"",
        timeout: float = ANSWER_SECONDS,  # noqa: ASYNC109
        headers: bytes = b"",
    ) -> Answer:
        """Ask and wait for the one answer; BrokerUnreachable if none comes."""
        if not await self.is_linked() or self._link is None:
            raise BrokerUnreachable("there is no connection to NATS; it is tried again by itself")
        self._next += 1
        name = b"r%d" % self._next
        answered: asyncio.Future[Answer] = self._loop.create_future()
        self._asked[name] = answered
        try:
            place = b"%b %b%b" % (subject.encode(), self._link.inbox.encode(), name)
            if headers:
                self._send(b"HPUB %b %d" % (place, len(headers)), headers + payload)
            else:
                self._send(b"PUB %b" % place, payload)
            async with asyncio.timeout(timeout):
                answer = await answered
        except TimeoutError:
            raise BrokerUnreachable(f"no answer to {subject} within {timeout:g} s") from None
        finally:
            del self._asked[name]
        if answer.status == NO_RESPONDERS:
            raise BrokerUnreachable(f"nobody answers {subject}; is JetStream on, and is it there?")
        return answer

    # -- what comes in ----------------------------------------------------------------------------------------------

    def consumed(self, run: ConsumedMessages) -> None:
        takers = self._takers
        for subject, reply, header, payload in zip(*run, strict=True):
            # $JS.ACK.<stream>.<consumer>.<deliveries>.<sequence>.<its own sequence>.<time>.<pending>, and with a domain
            # two more names before the stream and, maybe, one more word at the end.
            words = reply.split(b".")
            stream = 2 if len(words) == 9 else 4
            taker = takers.get((words[stream], words[stream + 1]))
            if taker is not None:
                deliveries, sequence, _, time, pending = map(int, words[stream + 2 : stream + 7])
                taker.take(Handed(subject, header, payload, reply, sequence, deliveries, time, pending))

    def answered(self, answer: Delivery) -> None:
        assert self._link is not None
        name = answer.subject[len(self._link.inbox) :]
        if (waiting := self._asked.get(name)) is not None:
            if not waiting.done():
                waiting.set_result(Answer(answer.payload, answer.header))
        elif name.startswith(_PULLED) and (taker := self._by_number.get(int(name[len(_PULLED) :]))):
            taker.told(Answer(answer.payload, answer.header))

    def refused(self, refusal: Refusal) -> None:
        REFUSED.emit(connection=self._name, reason=refusal.reason)

    def ponged(self) -> None:
        if self._pings:
            answered = self._pings.popleft()
            if isinstance(answered, asyncio.Future) and not answered.done():
                answered.set_result(None)
        if self._unread and not self._unsent:
            self._flush()

    def linked(self) -> None:
        LINKED.emit(connection=self._name)
        unread = [frame for each in self._pings if isinstance(each, list) for frame in each] + self._unread
        self._pings.clear()
        self._unsent.clear()
        self._unread = unread
        for taker in self._numbers:
            self.listen(taker)
        self._write(unread)
        for taker in list(self._numbers):
            taker.restored()

    def unlinked(self, reason: str) -> None:
        UNLINKED.emit(connection=self._name, reason=reason)

    def lost(self, reason: str) -> None:
        super().lost(reason)
        for waiting in self._asked.values():
            if not waiting.done():
                waiting.set_exception(BrokerUnreachable(reason))
        for each in self._pings:
            if isinstance(each, asyncio.Future) and not each.done():
                each.set_result(None)
        for taker in list(self._numbers):
            taker.interrupted()

    # -- what goes out ----------------------------------------------------------------------------------------------

    def _inbox_of(self, taker: Taker) -> bytes:
        assert self._link is not None
        return b"%b%b%d" % (self._link.inbox.encode(), _PULLED, self._numbers[taker])

    def _send(self, start: bytes, body: bytes) -> None:
        self._write([b"%b %d\r\n%b\r\n" % (start, len(body), body)])

    def _write(self, frames: Sequence[bytes]) -> None:
        if not self._unsent:
            self._loop.call_soon(self._flush)
        self._unsent += frames

    def _ping(self, sure_of: list[bytes] | asyncio.Future[None]) -> None:
        self._pings.append(sure_of)
        self._write([PING])

    def _flush(self) -> None:
        if self._link is None:
            self._unsent.clear()
            return
        if self._unread and not self._pings:
            unread, self._unread = self._unread, []
            self._pings.append(unread)
            self._unsent.append(PING)
        if self._unsent:
            data, self._unsent = b"".join(self._unsent), []
            self._link.write(data)

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(ALIVE_SECONDS / 2)
            link = self._link
            if link is None:
                continue
            silent = self._loop.time() - link.heard_at
            if silent > 2 * ALIVE_SECONDS:
                link.abort(f"the server has said nothing for {silent:.0f} s")
            elif silent > ALIVE_SECONDS:
                self._ping([])
