"""How far a lane can be read while transactions are open: nothing may come to exist below it."""

from __future__ import annotations

import random
import threading
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import psycopg
import pytest

from tenantry.outbox import Emission, emit, emit_many
from tests.outbox.own_database import OwnDatabase, make_own_database

EVERY_LANE = 736_800_000
WRITERS = 8
TRANSACTIONS = 120


class Horizon(NamedTuple):
    head: int
    held: dict[int, int]
    """By lane."""

    @classmethod
    def read(cls, connection: psycopg.Connection[Any]) -> Horizon:
        rows = connection.execute("select lane, ticket from tenantry.outbox_horizon()").fetchall()
        (nobody, head), *others = rows
        assert nobody is None
        held: dict[int, int] = {}
        for lane, ticket in others:
            held[lane] = min(ticket, held.get(lane, ticket))
        return cls(head, held)

    def of(self, lane: int) -> int:
        return min(self.head, self.held.get(lane, self.head), self.held.get(EVERY_LANE, self.head))


@pytest.fixture
async def outbox(database: str) -> OwnDatabase:
    return await make_own_database(database)


@pytest.fixture
def reader(outbox: OwnDatabase) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(outbox.url, autocommit=True) as connection:
        yield connection


def lane_of(reader: psycopg.Connection[Any], tenant: str, channel: str = "events") -> int:
    row = reader.execute(
        "select id from tenantry.outbox_lanes where tenant_id = %s and channel = %s", [tenant, channel]
    ).fetchone()
    assert row
    return int(row[0])


def tickets(reader: psycopg.Connection[Any], lane: int) -> list[int]:
    rows = reader.execute("select ticket from tenantry.outbox where lane = %s order by ticket, id", [lane])
    return [row[0] for row in rows]


def test_an_open_transaction_holds_back_the_lanes_it_emitted_to_and_no_other(
    outbox: OwnDatabase, reader: psycopg.Connection[Any]
) -> None:
    acme, globex = lane_of(reader, "acme"), lane_of(reader, "globex")
    with psycopg.connect(outbox.url) as slow:
        emit(slow, "acme", "a", id="slow")
        for tenant in ("acme", "globex"):
            emit(reader, tenant, "a")
        horizon = Horizon.read(reader)
        assert horizon.held.keys() == {acme}
        assert [ticket <= horizon.of(acme) for ticket in tickets(reader, acme)] == [False]
        assert [ticket <= horizon.of(globex) for ticket in tickets(reader, globex)] == [True]
    horizon = Horizon.read(reader)
    assert horizon.held == {}
    assert [ticket <= horizon.of(acme) for ticket in tickets(reader, acme)] == [True, True]


def test_it_is_told_who_holds_a_lane_back(outbox: OwnDatabase, reader: psycopg.Connection[Any]) -> None:
    with psycopg.connect(outbox.url) as slow:
        emit(slow, "acme", "a")
        held = reader.execute("select lane, pid from tenantry.outbox_horizon() offset 1").fetchall()
        assert held == [(lane_of(reader, "acme"), slow.info.backend_pid)]


def test_many_lanes_are_held_back_by_one_lock(outbox: OwnDatabase, reader: psycopg.Connection[Any]) -> None:
    for number in range(40):
        outbox.add_lane(f"t{number}")
    with psycopg.connect(outbox.url) as slow:
        emit_many(slow, [Emission(f"t{number}", "a") for number in range(16)])
        horizon = Horizon.read(reader)
        assert len(horizon.held) == 16
        assert EVERY_LANE not in horizon.held
        emit_many(slow, [Emission(f"t{number}", "a") for number in range(40)])
        emit(slow, "t39", "a")
        horizon = Horizon.read(reader)
        assert len(horizon.held) == 17
        emit(reader, "acme", "a")
        acme = lane_of(reader, "acme")
        assert [ticket <= Horizon.read(reader).of(acme) for ticket in tickets(reader, acme)] == [False]
    horizon = Horizon.read(reader)
    assert all(ticket <= horizon.of(acme) for ticket in tickets(reader, acme))
    # All that one transaction emitted to a lane has one place there.
    assert len(set(tickets(reader, lane_of(reader, "t39")))) == 1
    assert len(set(tickets(reader, lane_of(reader, "t0")))) == 1


def test_a_rollback_to_a_savepoint_lets_go(outbox: OwnDatabase, reader: psycopg.Connection[Any]) -> None:
    acme, globex = lane_of(reader, "acme"), lane_of(reader, "globex")
    with psycopg.connect(outbox.url) as slow:
        emit(slow, "acme", "a", id="kept")
        with slow.transaction(force_rollback=True):
            emit(slow, "acme", "a")
            emit(slow, "globex", "a")
            assert Horizon.read(reader).held.keys() == {acme, globex}
        assert Horizon.read(reader).held.keys() == {acme}
        emit(reader, "globex", "a", id="other")
        between = tickets(reader, globex)
        # A place that was given up is not taken again: others have passed it.
        emit(slow, "globex", "a", id="later")
        assert Horizon.read(reader).of(globex) >= between[0]
    assert tickets(reader, globex) == [between[0], max(tickets(reader, globex))]
    assert [row["event_id"] for row in outbox.rows()] == ["kept", "other", "later"]


def test_a_session_that_emits_again_draws_again(outbox: OwnDatabase, reader: psycopg.Connection[Any]) -> None:
    acme = lane_of(reader, "acme")
    with psycopg.connect(outbox.url, autocommit=True) as session:
        for _ in range(3):
            with session.transaction():
                emit(session, "acme", "a")
                emit(session, "acme", "a")
    drawn = tickets(reader, acme)
    assert drawn == sorted(drawn)
    assert len(set(drawn)) == 3


@pytest.mark.parametrize("last", [2**31 - 1, 2**32 - 2, 2**32, 2**33 + 2**31 - 1, 2**33 + 5, 2**40])
def test_tickets_may_be_any_number_of_bits(outbox: OwnDatabase, reader: psycopg.Connection[Any], last: int) -> None:
    reader.execute("select setval('tenantry.outbox_tickets', %s)", [last])
    acme = lane_of(reader, "acme")
    with psycopg.connect(outbox.url) as slow:
        emit(slow, "acme", "a")
        for _ in range(5):
            emit(reader, "acme", "a")
        horizon = Horizon.read(reader)
        assert horizon.held == {acme: last}
        assert horizon.head == last + 6
    assert tickets(reader, acme) == list(range(last + 1, last + 7))


def test_a_lock_of_somebody_who_is_just_beginning_holds_nothing_back(
    outbox: OwnDatabase, reader: psycopg.Connection[Any]
) -> None:
    acme = lane_of(reader, "acme")
    emit(reader, "acme", "a")
    head = Horizon.read(reader).head
    with psycopg.connect(outbox.url) as beginning:
        # As if it had read the last ticket after us: others have drawn some meanwhile.
        beginning.execute("select pg_advisory_xact_lock_shared(%s, %s)", [acme, head + 3])
        assert Horizon.read(reader).of(acme) == head


@dataclass
class Follower:
    """Reads lanes as a relay does: the horizon first, and in a later statement what lies below it."""

    url: str
    seen: dict[int, list[tuple[int, int, str]]] = field(default_factory=lambda: defaultdict(list))

    def read(self, connection: psycopg.Connection[Any]) -> None:
        horizon = Horizon.read(connection)
        for (lane,) in connection.execute("select id from tenantry.outbox_lanes").fetchall():
            ticket, id, _ = self.seen[lane][-1] if self.seen[lane] else (0, 0, "")
            self.seen[lane] += connection.execute(
                """select ticket, id, event_id from tenantry.outbox
                   where lane = %s and (ticket, id) > (%s, %s) and ticket <= %s order by ticket, id""",
                [lane, ticket, id, horizon.of(lane)],
            ).fetchall()

    def follow(self, until: threading.Event) -> None:
        with psycopg.connect(self.url, autocommit=True) as connection:
            while not until.is_set():
                self.read(connection)
            self.read(connection)


def write(url: str, seed: int, lanes: list[tuple[str, str]]) -> dict[tuple[str, str], list[str]]:
    """Transactions of all sorts; the ids of what was committed, in order, by lane."""
    chance = random.Random(seed)
    committed: dict[tuple[str, str], list[str]] = defaultdict(list)
    with psycopg.connect(url, autocommit=True) as connection:
        for transaction in range(TRANSACTIONS):
            is_undone = chance.random() < 0.2
            with connection.transaction(force_rollback=is_undone):
                for step in range(chance.randint(1, 4)):
                    is_taken_back = chance.random() < 0.2
                    chosen = lanes if chance.random() < 0.05 else chance.sample(lanes, chance.randint(1, 3))
                    ids = {lane: f"{seed}.{transaction}.{step}.{number}" for number, lane in enumerate(chosen)}
                    with connection.transaction(force_rollback=is_taken_back):
                        emit_many(
                            connection,
                            [Emission(tenant, "a", channel=channel, id=id) for (tenant, channel), id in ids.items()],
                        )
                        connection.execute("select pg_sleep(%s)", [chance.random() * 0.003])
                    for lane, id in ids.items() if not (is_undone or is_taken_back) else ():
                        committed[lane].append(id)
    return committed


def test_a_reader_that_follows_sees_every_committed_event_once_and_in_order(
    outbox: OwnDatabase, reader: psycopg.Connection[Any]
) -> None:
    for number in range(17):
        outbox.add_lane(f"t{number}")
    rows = reader.execute("select id, tenant_id, channel from tenantry.outbox_lanes").fetchall()
    lanes = {(tenant, channel): id for id, tenant, channel in rows}
    follower, is_over = Follower(outbox.url), threading.Event()
    with ThreadPoolExecutor(WRITERS + 1) as threads:
        following = threads.submit(follower.follow, is_over)
        writing = [threads.submit(write, outbox.url, seed, list(lanes)) for seed in range(WRITERS)]
        try:
            committed = [each.result() for each in writing]
        finally:
            is_over.set()
        following.result()
    assert sum(map(len, follower.seen.values())) > WRITERS * TRANSACTIONS / 2
    for lane, id in lanes.items():
        seen = follower.seen[id]
        stored = reader.execute(
            "select ticket, id, event_id from tenantry.outbox where lane = %s order by ticket, id", [id]
        ).fetchall()
        assert seen == stored
        place = {event: number for number, (_, _, event) in enumerate(seen)}
        assert len(place) == len(seen)
        assert sorted(place) == sorted(event for each in committed for event in each[lane])
        for each in committed:
            # What one writer committed one after the other does not overlap: it keeps its order.
            order = [place[event] for event in each[lane]]
            assert order == sorted(order)
