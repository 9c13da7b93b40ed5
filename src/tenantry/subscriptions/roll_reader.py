"""Reads the roll of workers without being on it: who is there, and how they cope."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from contextlib import AsyncExitStack, aclosing
from datetime import UTC, datetime, timedelta
from typing import Any, Final, NamedTuple

import msgspec
import nats.errors
from nats.aio.client import Client
from nats.js.errors import APIError, NotFoundError

from tenantry.errors import BrokerError
from tenantry.nats.connections import Broker, connect
from tenantry.nats.following import Start, Stored, follow
from tenantry.service import end
from tenantry.subscriptions.roll import GONE_BEATS, HEARTBEAT_SECONDS, STREAM
from tenantry.subscriptions.scaling import MEASURED_SECONDS, Reading
from tenantry.subscriptions.spreading import Member

MISSED_SECONDS: Final = GONE_BEATS * HEARTBEAT_SECONDS
CATCH_UP_SECONDS: Final = 5.0
RETRY_SECONDS: Final = 1.0


class Present(NamedTuple):
    """A worker that is there."""

    member: Member
    age_seconds: float
    """Since it last told of itself."""
    readings: list[Reading]
    """The last ones, the oldest first; by the clock of `time.monotonic`."""

    def describe(self) -> dict[str, Any]:
        member = self.member
        return {
            "id": member.id,
            "app": member.app,
            "services": sorted(member.services),
            "tenants": sorted(member.tenants),
            "plans": sorted(member.plans),
            "host": member.host,
            "pid": member.pid,
            "is_leaving": member.is_leaving,
            "age_seconds": round(self.age_seconds, 3),
            "load": member.load,
        }


class RollReader:
    """A service."""

    name = "roll reader"

    def __init__(self, namespace: str, broker: Broker) -> None:
        self._subjects = f"{namespace}.workers.members.>"
        self._broker = broker
        self._members: dict[str, Member] = {}
        self._heard_at: dict[str, float] = {}
        self._readings: dict[str, deque[Reading]] = {}
        self._behind = timedelta.max
        """How far the broker's clock is behind ours, and how long a message takes: the least that was seen."""
        self._read_until = 0
        self._caught_up = asyncio.Event()
        self._stack = AsyncExitStack()
        self._reading: asyncio.Task[None] | None = None

    def present(self) -> list[Present]:
        """Those that were heard lately; the ids of others are forgotten."""
        moment = time.monotonic()
        for id in [id for id, heard in self._heard_at.items() if moment - heard > MISSED_SECONDS]:
            self._forget(id)
        return [
            Present(member, moment - self._heard_at[id], list(self._readings[id]))
            for id, member in sorted(self._members.items())
        ]

    async def start(self) -> None:
        """Returns when all that there is on the roll is known."""
        client = await self._stack.enter_async_context(connect(self._broker, "tenantry-roll-reader"))
        await self._look_for_end(client)
        self._reading = asyncio.create_task(self._read(client), name="roll reader")
        try:
            async with asyncio.timeout(CATCH_UP_SECONDS):
                await self._caught_up.wait()
        except TimeoutError:
            await self.stop()
            raise BrokerError(
                f"the roll of workers (stream {STREAM}) could not be read within {CATCH_UP_SECONDS:.0f} s; try again"
            ) from None

    async def run(self) -> None:
        assert self._reading is not None
        await asyncio.shield(self._reading)

    async def stop(self) -> None:
        if self._reading is not None:
            await end([self._reading])
        await self._stack.aclose()

    def kill(self) -> None:
        if self._reading is not None:
            self._reading.cancel()

    async def _look_for_end(self, client: Client) -> None:
        try:
            last = await client.jetstream().get_last_msg(STREAM, self._subjects)
        except NotFoundError:
            # Nobody was ever there, or nobody is.
            self._caught_up.set()
        except (APIError, nats.errors.Error) as problem:
            await self._stack.aclose()
            raise BrokerError(f"the roll of workers cannot be read: {problem}; try again") from None
        else:
            self._read_until = last.seq or 0

    async def _read(self, client: Client) -> None:
        while True:
            async with aclosing(follow(client, STREAM, self._subjects, Start(1))) as messages:
                async for stored in messages:
                    self._learn(stored)
            # The first worker makes the stream.
            await asyncio.sleep(RETRY_SECONDS)

    def _learn(self, stored: Stored) -> None:
        id = stored.subject.rpartition(".")[2]
        if stored.payload:
            age = datetime.now(UTC) - stored.time
            self._behind = min(self._behind, age)
            self._note(msgspec.json.decode(stored.payload, type=Member), (age - self._behind).total_seconds())
        else:
            self._forget(id)
        if stored.sequence >= self._read_until:
            self._caught_up.set()

    def _note(self, member: Member, age_seconds: float) -> None:
        at = time.monotonic() - age_seconds
        self._members[member.id] = member
        self._heard_at[member.id] = at
        readings = self._readings.setdefault(member.id, deque())
        readings.append(Reading.of(at, member.load))
        while readings[0].at < at - MEASURED_SECONDS:
            readings.popleft()

    def _forget(self, id: str) -> None:
        for known in (self._members, self._heard_at, self._readings):
            known.pop(id, None)
