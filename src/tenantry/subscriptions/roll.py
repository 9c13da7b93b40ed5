"""The roll of workers: who is there, and who holds what. All of it is one JetStream stream, which each worker follows.

A worker tells of itself every second, and may work for a while after the broker took that in. It is gone for another
one that has read several words of its own since: these were said a second apart each, so by no clock but its own it is
certain that time has passed, however late it reads. What a worker holds it has claimed: a claim is written only if
nobody else has written one since it was last looked at, and its place in the stream is the fence, which only grows.

It is kept by the broker and not by the database: a worker that cannot reach the broker has nothing to handle anyway,
and one that cannot reach the database may still have.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import AsyncExitStack, aclosing
from typing import Any, Final, NamedTuple

import msgspec

from tenantry.errors import BrokerError, JetStreamRefused
from tenantry.nats.connections import Broker, connect
from tenantry.nats.feed import Feed
from tenantry.nats.following import Start, Stored, follow
from tenantry.nats.jetstream import NAME_IN_USE, JetStream
from tenantry.service import end
from tenantry.subscriptions.spreading import Member, Partition
from tenantry.telemetry import signal

JOINED = signal("subscriptions.worker_joined", "A worker is there.", "worker")
LEFT = signal("subscriptions.worker_left", "A worker is gone, as planned or not.", "worker", "planned")
LEASE_LOST = signal(
    "subscriptions.lease_lost",
    "The broker has not heard of this worker for too long; it stops all it does until it has.",
    "worker",
    level="warning",
)

STREAM: Final = "TENANTRY_WORKERS"
HEARTBEAT_SECONDS: Final = 1.0
LEASE_SECONDS: Final = 2.8
"""So long may a worker work after it has said the last thing that was heard."""
GONE_BEATS: Final = 4
"""Between the first and the last of so many there is more time than that."""
MEMBER_TTL: Final = 60
RELEASED_TTL: Final = 3600
ANSWER_SECONDS: Final = 2.0

_WRONG_SEQUENCE: Final = 10071


def hint_subject(namespace: str) -> str:
    """What is published there is no more than a nudge: what is asked of workers is in the database."""
    return f"{namespace}.hints.workers"


class Claim(NamedTuple):
    worker: str
    """Empty: it was released."""
    fence: int


class Roll:
    def __init__(
        self, namespace: str, broker: Broker, id: str, introduction: Callable[[], Member], *, replicas: int = 1
    ) -> None:
        self.id = id
        self.changed = asyncio.Event()
        """Somebody came or went, claimed or released."""
        self.nudged = asyncio.Event()
        """Somebody wants all workers to look at what is asked of them."""
        self._hints = hint_subject(namespace)
        self._prefix = f"{namespace}.workers"
        self._broker = broker
        self._replicas = replicas
        self._introduction = introduction
        self._members: dict[str, Member] = {}
        self._heard_at: dict[str, int] = {}
        """How many words of its own this worker had read by then."""
        self._beats = 0
        self._claims: dict[Partition, Claim] = {}
        self.term = 0
        """Grows whenever this worker could not act for a while: what it held before, it may have lost."""
        self._good_until = 0.0
        self._had_lease = False
        self._read_until = 0
        self._caught_up = asyncio.Event()
        self._stack = AsyncExitStack()
        self._tasks: list[asyncio.Task[None]] = []
        self.feed: Feed

    @property
    def is_current(self) -> bool:
        """Whether this worker may act on what it holds."""
        return _now() < self._good_until

    @property
    def members(self) -> list[Member]:
        """Those that are there."""
        return [member for id, member in self._members.items() if self.is_there(id)]

    def holder(self, partition: Partition) -> Claim | None:
        """Who has it, whether still there or not."""
        claim = self._claims.get(partition)
        return claim if claim and claim.worker else None

    def is_there(self, worker: str) -> bool:
        return worker in self._heard_at and self._beats - self._heard_at[worker] < GONE_BEATS

    async def start(self) -> None:
        """Returns when all that there is on the roll is known, and this worker is on it."""
        self.feed = Feed(self._broker, "tenantry-roll")
        self._stack.push_async_callback(self.feed.close)
        await _ensure_stream(JetStream(self.feed), f"{self._prefix}.>", self._replicas)
        client = await self._stack.enter_async_context(connect(self._broker, "tenantry-roll-reader"))
        await client.subscribe(self._hints, cb=self._hear)
        info = await JetStream(self.feed).stream(STREAM)
        assert info is not None
        self._read_until = int(info["state"]["last_seq"])
        if not info["state"]["messages"]:
            self._caught_up.set()

        async def read() -> None:
            async with aclosing(follow(client, STREAM, f"{self._prefix}.>", Start(1))) as messages:
                async for stored in messages:
                    self._learn(stored)
            raise BrokerError(f"the stream {STREAM} has gone; it is made again when a worker starts")

        self._tasks.append(asyncio.create_task(read(), name="roll reader"))
        await self._until_caught_up()
        await self.introduce()
        self._tasks.append(asyncio.create_task(self._beat(), name="roll heartbeat"))

    async def run(self) -> None:
        """Until something is wrong with it; it goes on until it is stopped."""
        done, _ = await asyncio.wait(self._tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()

    async def stop(self) -> None:
        await end(self._tasks)
        self._good_until = 0.0
        await self._stack.aclose()

    async def introduce(self) -> None:
        """Say that this worker is there, and what it is there for."""
        sent, document = _now(), msgspec.json.encode(self._introduction())
        try:
            await self._publish(self._member_subject(self.id), document, ttl=MEMBER_TTL)
        except BrokerError:
            return
        if not self.is_current:
            self.term += 1
        self._good_until = sent + LEASE_SECONDS
        self._had_lease = True

    async def leave(self) -> None:
        """Nothing is held any more: the others need not wait until it is missed."""
        try:
            await self._publish(self._member_subject(self.id), b"", ttl=MEMBER_TTL)
        except BrokerError:
            return

    async def claim(self, partition: Partition) -> int | None:
        """The fence, if it is now ours; None if somebody was quicker, or still has it."""
        known = self._claims.get(partition)
        if known and known.worker and known.worker != self.id and self.is_there(known.worker):
            return None
        return await self._write_claim(partition, known.fence if known else 0, self.id, None)

    async def release(self, partition: Partition) -> None:
        known = self._claims.get(partition)
        if known and known.worker == self.id:
            await self._write_claim(partition, known.fence, "", RELEASED_TTL)

    async def _write_claim(self, partition: Partition, after: int, worker: str, ttl: int | None) -> int | None:
        try:
            fence = await self._publish(self._claim_subject(partition), worker.encode(), after=after, ttl=ttl)
        except JetStreamRefused as refused:
            if refused.err_code != _WRONG_SEQUENCE:
                raise
            if refused.description.rpartition(" ")[2] == "0":
                # What was last written has been forgotten since.
                self._claims.pop(partition, None)
                self.changed.set()
            return None
        if fence > self._claims.get(partition, Claim("", 0)).fence:
            self._claims[partition] = Claim(worker, fence)
        return fence

    async def _publish(self, subject: str, payload: bytes, *, after: int | None = None, ttl: int | None = None) -> int:
        headers = b"NATS/1.0\r\n"
        if after is not None:
            headers += b"Nats-Expected-Last-Subject-Sequence: %d\r\n" % after
        if ttl is not None:
            headers += b"Nats-TTL: %ds\r\n" % ttl
        answer = await self.feed.request(subject, payload, ANSWER_SECONDS, headers + b"\r\n")
        document: dict[str, Any] = msgspec.json.decode(answer.data)
        if error := document.get("error"):
            raise JetStreamRefused(subject, error.get("code", 0), error.get("err_code", 0), error["description"])
        return int(document["seq"])

    def _learn(self, stored: Stored) -> None:
        kind, _, name = stored.subject.removeprefix(f"{self._prefix}.").partition(".")
        if kind == "members":
            self._learn_member(name, stored.payload)
        elif kind == "claims":
            service, tenant, part = name.split(".")
            partition = Partition(service, tenant, int(part))
            if stored.sequence > self._claims.get(partition, Claim("", 0)).fence:
                self._claims[partition] = Claim(stored.payload.decode(), stored.sequence)
                self.changed.set()
        if stored.sequence >= self._read_until:
            self._caught_up.set()

    def _learn_member(self, id: str, payload: bytes) -> None:
        before = self._members.get(id) if self.is_there(id) else None
        if not payload:
            self._members.pop(id, None)
            if self._heard_at.pop(id, None) and before:
                LEFT.emit(worker=id, planned=True)
                self.changed.set()
            return
        member = msgspec.json.decode(payload, type=Member)
        self._members[id] = member
        if id == self.id:
            self._beats += 1
        self._heard_at[id] = self._beats
        self._miss()
        if before is None:
            JOINED.emit(worker=id)
        if before is None or msgspec.structs.replace(before, load=member.load) != member:
            self.changed.set()

    async def _hear(self, _: object) -> None:
        self.nudged.set()

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(HEARTBEAT_SECONDS)
            await self.introduce()
            if self._had_lease and not self.is_current:
                self._had_lease = False
                LEASE_LOST.emit(worker=self.id)
                self.changed.set()

    def _miss(self) -> None:
        """Those that have not been heard for too long are gone."""
        for id in [id for id in self._members if not self.is_there(id)]:
            del self._members[id], self._heard_at[id]
            LEFT.emit(worker=id, planned=False)
            self.changed.set()

    async def _until_caught_up(self) -> None:
        waiting = asyncio.ensure_future(self._caught_up.wait())
        try:
            await asyncio.wait([waiting, *self._tasks], return_when=asyncio.FIRST_COMPLETED)
            for task in self._tasks:
                if task.done():
                    task.result()
        finally:
            waiting.cancel()

    def _member_subject(self, id: str) -> str:
        return f"{self._prefix}.members.{id}"

    def _claim_subject(self, partition: Partition) -> str:
        return f"{self._prefix}.claims.{partition.service}.{partition.tenant}.{partition.part}"


def _now() -> float:
    """Also the time that the machine was asleep counts, where that is to be had."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


async def _ensure_stream(jetstream: JetStream, subjects: str, replicas: int) -> None:
    if await jetstream.stream(STREAM) is not None:
        return
    config = {
        "name": STREAM,
        "subjects": [subjects],
        "storage": "file",
        "retention": "limits",
        "discard": "old",
        "max_msgs_per_subject": 1,
        "num_replicas": replicas,
        "allow_direct": True,
        "allow_msg_ttl": True,
        # A stream that had to be made anew must not give out fences that others have passed already.
        "first_seq": int(time.time() * 1000),
    }
    try:
        await jetstream.create_stream(config)
    except JetStreamRefused as refused:
        # Another worker that started at the same moment was quicker.
        if refused.err_code != NAME_IN_USE:
            raise
