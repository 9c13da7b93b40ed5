"""What is told about the outbox, in states that a running relay does not leave it in for long."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta

import psycopg
import pytest

from tenantry.errors import TenantNotFound
from tenantry.outbox import Emission, emit, emit_many, status
from tenantry.outbox.status import list_events, read_status
from tenantry.postgres.pool import connect
from tenantry.postgres.queries import Connection
from tests.outbox.own_database import OwnDatabase, make_own_database


@pytest.fixture
async def outbox(database: str) -> OwnDatabase:
    return await make_own_database(database)


@pytest.fixture
async def connection(outbox: OwnDatabase) -> AsyncIterator[Connection]:
    async with connect(outbox.url, autocommit=True) as opened:
        yield opened


async def publish(connection: Connection, event: str) -> None:
    """As a relay would note it, up to this event."""
    await connection.execute(
        """with o as (select lane, ticket, id from tenantry.outbox where event_id = %s),
           b as (insert into tenantry.outbox_batches (lane, ticket, id, attempts) select lane, ticket, id, 2 from o)
           update tenantry.outbox_cursors c set ticket = o.ticket, id = o.id from o where c.lane = o.lane""",
        [event],
    )


async def test_only_so_many_are_counted(
    outbox: OwnDatabase, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(status, "MOST_COUNTED", 10)
    await emit_many(connection, [Emission("acme", "a") for _ in range(11)] + [Emission("globex", "a")] * 10)
    lanes = {lane.tenant_id: lane for lane in (await read_status(connection)).lanes if lane.pending}
    assert (lanes["acme"].pending, lanes["acme"].is_more) == (10, True)
    assert (lanes["globex"].pending, lanes["globex"].is_more) == (10, False)


async def test_a_lane_tells_what_it_is_waiting_for(outbox: OwnDatabase, connection: Connection) -> None:
    for id in ("1", "2"):
        await emit(connection, "acme", "a", id=id)
    await publish(connection, "1")
    later = datetime.now(UTC) + timedelta(minutes=5)
    await connection.execute(
        "update tenantry.outbox_cursors set attempts = 3, retry_at = %s, last_error = 'no room' where ticket > 0",
        [later],
    )
    found = await read_status(connection, "acme")
    lane = next(lane for lane in found.lanes if lane.channel == "events")
    assert (lane.pending, lane.attempts, lane.retry_at, lane.last_error) == (1, 3, later, "no room")
    assert found.oldest == lane.oldest
    assert found.relays == 0
    second, first = await list_events(connection, "acme", None, 10)
    assert (first.state, first.attempts, first.last_error) == ("published", 2, None)
    assert first.published_at
    assert (second.state, second.attempts, second.last_error) == ("pending", 3, "no room")


async def test_a_dead_letter_is_a_failed_event(outbox: OwnDatabase, connection: Connection) -> None:
    await emit_many(connection, [Emission("acme", "a", id=id, channel="orders") for id in ("1", "2", "3")])
    await connection.execute(
        """insert into tenantry.outbox_dead_letters
           (lane, ticket, id, event_id, type, traceparent, document, attempts, reason, created_at)
           select lane, ticket, id, event_id, type, traceparent, document, 8, 'too large', created_at
           from tenantry.outbox where event_id = '2'"""
    )
    await publish(connection, "2")
    for state, ids in (("failed", ["2"]), ("published", ["1"]), ("pending", ["3"]), (None, ["3", "2", "1"])):
        assert [event.id for event in await list_events(connection, "acme", state, 10)] == ids  # type: ignore[arg-type]
    (failed,) = await list_events(connection, "acme", "failed", 10)
    assert (failed.attempts, failed.last_error) == (8, "too large")
    assert (await read_status(connection)).dead_letters == 1


async def test_a_transaction_that_emits_to_very_many_lanes_holds_all(
    outbox: OwnDatabase, connection: Connection
) -> None:
    for number in range(20):
        outbox.add_lane(f"t{number}")
    with psycopg.connect(outbox.url) as slow:
        emit_many(slow, [Emission(f"t{number}", "a") for number in range(20)])
        (holder,) = (await read_status(connection)).holders
        assert (holder.pid, holder.holds_every_lane, len(holder.lanes)) == (slow.info.backend_pid, True, 16)
        (holder,) = (await read_status(connection, "acme")).holders
        assert holder.holds_every_lane
    assert (await read_status(connection)).holders == []


async def test_an_unknown_tenant_is_an_error(outbox: OwnDatabase, connection: Connection) -> None:
    assert await list_events(connection, "acme", None, 10) == []
    with pytest.raises(TenantNotFound):
        await list_events(connection, "nobody", None, 10)
    with pytest.raises(TenantNotFound):
        await read_status(connection, "nobody")
