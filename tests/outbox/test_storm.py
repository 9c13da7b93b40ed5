"""Writers that roll back and dawdle, relays that are killed, a broker that goes away twice: order holds."""

from __future__ import annotations

import asyncio
import json
import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import psycopg
import pytest

from tenantry.outbox import emit_many
from tenantry.tenants.spec import TenantSpec
from tenantry.testing import TestPlatform
from tests.outbox.relays import NO_LIMIT, Place, place_of, stored
from tests.own_server import OwnServer

TENANTS = 50
EVENTS = 100_000
WRITERS = 16
RELAYS = 4


class Written(NamedTuple):
    """When a transaction began to emit, and when it was certainly committed."""

    began: float
    committed: float


class Writer:
    """Emits in transactions of all kinds, and remembers which of them were committed."""

    def __init__(self, place: Place, number: int, events: int) -> None:
        self._place = place
        self._number = number
        self._left = events
        self._random = random.Random(number)
        self._next = 0
        self.committed: dict[str, dict[str, Written]] = {}
        self.rolled_back: set[str] = set()

    def run(self, halfway: threading.Event) -> None:
        with psycopg.connect(self._place.database_url) as connection:
            while self._left > 0:
                self._transaction(connection)
                if self._left < EVENTS // WRITERS // 2:
                    halfway.set()

    def _transaction(self, connection: psycopg.Connection[object]) -> None:
        chance = self._random
        tenants = chance.sample(range(TENANTS), chance.choice((1, 1, 2, 5, 25)))
        events = [self._event(tenant) for tenant in tenants for _ in range(chance.randint(1, 20))]
        middle = len(events) // 2
        began = time.monotonic()
        emit_many(connection, events[:middle])
        if chance.random() < 0.03:
            # A transaction that takes its time, while others go by.
            time.sleep(chance.uniform(0.02, 0.3))
        emit_many(connection, events[middle:])
        if chance.random() < 0.1:
            connection.rollback()
            self.rolled_back |= {str(event["id"]) for event in events}
            return
        connection.commit()
        written = Written(began, time.monotonic())
        for event in events:
            self.committed.setdefault(str(event["tenant"]), {})[str(event["id"])] = written
        self._left -= len(events)

    def _event(self, tenant: int) -> dict[str, object]:
        self._next += 1
        id = f"{self._number}-{self._next}"
        return {"tenant": f"t{tenant}", "type": "order.created", "id": id, "data": {"n": self._next}}


@pytest.mark.timeout(600)
async def test_every_committed_event_is_in_its_lane_once_and_in_order_whatever_dies(
    own_nats: OwnServer, platform: TestPlatform, tmp_path: Path
) -> None:
    async with place_of(own_nats, platform, tmp_path) as place:
        for number in range(TENANTS):
            tier = "pooled" if number % 5 == 0 else "stream"
            await place.administration.put(TenantSpec(id=f"t{number}", tier=tier, overrides=NO_LIMIT), "test")
        lanes = {
            f"t{number}": await place.administration.lanes.resolve(f"t{number}", "events") for number in range(TENANTS)
        }
        for relay in [place.start_relay() for _ in range(RELAYS)]:
            relay.until_ready()
        writers = [Writer(place, number, EVENTS // WRITERS) for number in range(WRITERS)]
        halfway = threading.Event()
        killing = asyncio.create_task(kill_relays(place))
        with ThreadPoolExecutor(WRITERS) as executor:
            writing = [executor.submit(writer.run, halfway) for writer in writers]
            await asyncio.to_thread(halfway.wait)
            await own_nats.stop()
            await own_nats.start()
            await asyncio.to_thread(lambda: [each.result() for each in writing])
        own_nats.kill()
        await own_nats.start()
        await asyncio.to_thread(place.until_all_is_published)
        killing.cancel()
        committed: dict[str, dict[str, Written]] = {name: {} for name in lanes}
        for writer in writers:
            for tenant, events in writer.committed.items():
                committed[tenant] |= events
        assert sum(len(events) for events in committed.values()) >= EVENTS
        for tenant, lane in lanes.items():
            in_lane = [(id.partition("/")[2], json.loads(payload)) for id, payload in stored(own_nats.address, lane)]
            ids = [id for id, _ in in_lane]
            assert len(ids) == len(set(ids)), f"{tenant} has events twice"
            assert set(ids) == set(committed[tenant]), f"{tenant} lacks events or has rolled back ones"
            assert all(event["tenantid"] == tenant for _, event in in_lane)
            require_order(tenant, ids, committed[tenant])


def require_order(tenant: str, ids: list[str], committed: dict[str, Written]) -> None:
    last_of_writer: dict[str, int] = {}
    latest_begin = 0.0
    for id in ids:
        writer, _, number = id.partition("-")
        assert int(number) > last_of_writer.get(writer, 0), f"{tenant}: {id} came after a later one of its writer"
        last_of_writer[writer] = int(number)
        # Whoever had committed before another one began to emit comes before it.
        assert committed[id].committed >= latest_begin, f"{tenant}: {id} came after one that began when it was done"
        latest_begin = max(latest_begin, committed[id].began)


async def kill_relays(place: Place) -> None:
    chance = random.Random(7)
    while True:
        await asyncio.sleep(chance.uniform(0.5, 1.5))
        await asyncio.to_thread(chance.choice(place.relays[-RELAYS:]).kill)
        place.start_relay()
