"""Who may send how much now: the rate that a tenant's plan allows, and the room that there is in this process.

Every process counts for itself; a tenant whose requests are spread over several has the rate in each.
"""

from __future__ import annotations

import asyncio
import math
import time
from typing import Final

from tenantry.errors import NowhereToStore, TooMuch
from tenantry.tenants.rates import Bucket
from tenantry.tenants.tenant import Tenant

LONGEST_DELAY: Final = 0.25
MOST_BYTES: Final = 256 << 20
MOST_EVENTS: Final = 50_000
# One tenant whose stream does not answer must leave room for all the others.
MOST_BYTES_OF_TENANT: Final = 32 << 20
MOST_EVENTS_OF_TENANT: Final = 10_000
FORGET_SECONDS: Final = 60.0


class Rates:
    """A bucket for each tenant that has sent something lately."""

    def __init__(self) -> None:
        self._buckets: dict[str, Bucket] = {}
        self._swept_at = time.monotonic()

    async def admit(self, tenant: Tenant, count: int) -> None:
        """Take so many events from the tenant's allowance, after a short wait if need be; else TooMuch."""
        now, limits = time.monotonic(), tenant.limits
        bucket = self._buckets.get(tenant.id)
        if bucket is None:
            self._sweep(now)
            bucket = self._buckets[tenant.id] = Bucket.full(limits.publish_rate, limits.publish_burst, now)
        bucket.resize(limits.publish_rate, limits.publish_burst, now)
        seconds = bucket.wait(count, now)
        if seconds > LONGEST_DELAY:
            raise TooMuch(
                f"tenant {tenant.id} may send {limits.publish_rate:,} events a second, and {limits.publish_burst:,} at "
                f"once; there is room for {count:,} in {seconds:.1f} s",
                max(1, math.ceil(seconds)),
            )
        bucket.take(count, now)
        if seconds:
            await asyncio.sleep(seconds)

    def _sweep(self, now: float) -> None:
        """Forget those who have been silent until their bucket must be full again."""
        if now - self._swept_at > FORGET_SECONDS:
            self._swept_at = now
            for tenant, bucket in list(self._buckets.items()):
                if not bucket.wait(bucket.burst, now):
                    del self._buckets[tenant]


class Room:
    """What is being read, or waits for an answer: bounded for each tenant, and for all together."""

    def __init__(self) -> None:
        self._bytes = 0
        self._events = 0
        self._tenants: dict[str, Place] = {}

    def enter(self, tenant: str) -> Stay:
        return Stay(self, tenant)

    def take(self, tenant: str, bytes: int, events: int) -> None:
        if self._bytes + bytes > MOST_BYTES or self._events + events > MOST_EVENTS:
            raise NowhereToStore("there is no room for more at the moment: too much waits to be stored; try again")
        place = self._tenants.setdefault(tenant, Place())
        if place.bytes + bytes > MOST_BYTES_OF_TENANT or place.events + events > MOST_EVENTS_OF_TENANT:
            raise TooMuch(f"too much of tenant {tenant} waits to be stored; send the next when these are answered")
        place.bytes += bytes
        place.events += events
        self._bytes += bytes
        self._events += events

    def give_back(self, tenant: str, bytes: int, events: int) -> None:
        self._bytes -= bytes
        self._events -= events
        place = self._tenants[tenant]
        place.bytes -= bytes
        place.events -= events
        if not place.bytes and not place.events:
            del self._tenants[tenant]


class Place:
    """What one tenant takes up."""

    __slots__ = ("bytes", "events")

    def __init__(self) -> None:
        self.bytes = 0
        self.events = 0


class Stay:
    """What one request takes up, until it is answered."""

    __slots__ = ("_bytes", "_events", "_room", "_tenant")

    def __init__(self, room: Room, tenant: str) -> None:
        self._room = room
        self._tenant = tenant
        self._bytes = 0
        self._events = 0

    def __enter__(self) -> Stay:
        return self

    def __exit__(self, *_: object) -> None:
        if self._bytes or self._events:
            self._room.give_back(self._tenant, self._bytes, self._events)

    def take_bytes(self, count: int) -> None:
        self._room.take(self._tenant, count, 0)
        self._bytes += count

    def take_events(self, count: int) -> None:
        self._room.take(self._tenant, 0, count)
        self._events += count
