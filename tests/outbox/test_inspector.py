"""What the broker is found to have of a lane."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import pytest

import nats_bulk
from nats_bulk import Message
from tenantry.nats.connections import Broker, connect, connect_bulk
from tenantry.nats.jetstream import JetStream
from tenantry.outbox import inspector
from tenantry.outbox.inspector import Inspector
from tenantry.tenants.lanes import Lane

EVENTS = 60
SIZE = 100_000
"""The server keeps messages in blocks of 4 MiB and more; so many and so large, erased ones are at the end of one."""


def publish(lane: Lane, name: str) -> None:
    with connect_bulk(lane.broker, "test") as connection:
        messages = [
            Message(f"{lane.prefix}.{name}", b"x" * SIZE, lane.message_id(f"{name}-{number}"))
            for number in range(EVENTS)
        ]
        nats_bulk.publish(connection, messages).raise_for_errors()


@pytest.mark.parametrize("waits_in", ["before", "erased", "after"])
async def test_events_behind_erased_ones_are_found_from_any_time_on(
    account: Broker, monkeypatch: pytest.MonkeyPatch, waits_in: str
) -> None:
    monkeypatch.setattr(inspector, "FEW", 0)
    monkeypatch.setattr(inspector, "CLOCK_SKEW", timedelta(0))
    lane = Lane("acme", "events", "S", "app.tenants.acme.events", account, "")
    began_at = {}
    async with connect(account, "test") as client:
        jetstream = JetStream(client)
        config = {
            "name": lane.stream,
            "subjects": [lane.subjects],
            "max_bytes": 4 * EVENTS * SIZE,
            "allow_direct": True,
        }
        await jetstream.create_stream(config)
        for name in ("before", "erased", "after"):
            began_at[name] = datetime.now(UTC)
            await asyncio.to_thread(publish, lane, name)
        await jetstream.purge(lane.stream, f"{lane.prefix}.erased")
    inspection = Inspector()
    try:
        found, last = await asyncio.to_thread(inspection.stored, lane, 0, began_at[waits_in])
        nothing, _ = await asyncio.to_thread(inspection.stored, lane, 0, datetime.now(UTC))
    finally:
        inspection.close()
    expected = ("before", "after") if waits_in == "before" else ("after",)
    assert found == {lane.message_id(f"{name}-{number}") for name in expected for number in range(EVENTS)}
    assert last == 3 * EVENTS
    assert nothing == set()
