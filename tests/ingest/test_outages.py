"""Servers come and go; whoever was answered with 202 need not send again, and order is kept."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator

import pytest

import nats_bulk
from tenantry.nats.connections import connect_bulk
from tenantry.testing import TestPlatform
from tests.ingest.conftest import Sender, event, make_sender
from tests.ingest.outage import FragilePlatform, open_fragile, until
from tests.own_server import OwnServer

Signals = list[tuple[str, dict[str, object]]]


@pytest.fixture
async def fragile(platform: TestPlatform, own_nats: OwnServer) -> AsyncIterator[FragilePlatform]:
    async with open_fragile(platform, own_nats) as opened:
        yield opened


@pytest.fixture
async def acme(fragile: FragilePlatform) -> Sender:
    return await make_sender(await fragile.start_api())


def count(signals: Signals, name: str) -> int:
    return [each for each, _ in signals].count(name)


def is_linked(signals: Signals) -> bool:
    links = [name for name, _ in signals if name in ("ingest.linked", "ingest.unlinked")]
    return links[-1:] != ["ingest.unlinked"]


async def send(acme: Sender, id: str, status: int = 202) -> int:
    """How many were spooled."""
    answer = await acme.send(event(id))
    assert answer.status_code == status, answer.text
    return int(answer.json().get("spooled", 0))


async def test_without_nats_events_go_to_the_outbox_and_order_is_kept_until_that_is_published(
    fragile: FragilePlatform, acme: Sender, signals: Signals
) -> None:
    assert await send(acme, "1") == 0
    fragile.nats.kill()
    await until(lambda: not is_linked(signals))
    assert await send(acme, "2") == 1
    headers = {"traceparent": f"00-{'a' * 32}-{'b' * 16}-01", "tracestate": "x=1"}
    batch = await acme.send([event("3", tenantid="globex"), event("4")], headers=headers)
    assert batch.json() == {"accepted": 2, "duplicates": 0, "spooled": 2, "ids": ["3", "4"]}
    rows = await fragile.rows()
    assert [(row["event_id"], row["type"], row["state"]) for row in rows] == [
        (id, "order.created", "pending") for id in ("2", "3", "4")
    ]
    assert [json.loads(row["document"])["tenantid"] for row in rows] == ["acme"] * 3
    assert (rows[1]["traceparent"], rows[1]["tracestate"]) == (headers["traceparent"], "x=1")
    await fragile.nats.start()
    await until(lambda: is_linked(signals))
    assert await send(acme, "5") == 1
    await fragile.relay()
    await until(lambda: count(signals, "ingest.spool_released"))
    assert await send(acme, "6") == 0
    assert [each.headers["Nats-Msg-Id"] for each in await acme.stored()] == ["acme/1", "acme/6"]


async def test_what_another_process_spooled_is_not_overtaken(
    fragile: FragilePlatform, acme: Sender, signals: Signals
) -> None:
    fragile.nats.kill()
    await until(lambda: not is_linked(signals))
    assert await send(acme, "1") == 1
    await fragile.nats.start()
    await until(lambda: is_linked(signals))
    other = await fragile.start_api()
    elsewhere = Sender(other, await other.client("events:write", tenant="acme"), "acme")
    assert await send(elsewhere, "2") == 1
    await fragile.relay()
    await until(lambda: count(signals, "ingest.spool_released") >= 2)
    assert await send(elsewhere, "3") == 0


async def test_a_server_that_stands_still_is_as_good_as_gone(
    fragile: FragilePlatform, acme: Sender, signals: Signals
) -> None:
    assert await send(acme, "1") == 0
    with fragile.nats.frozen():
        assert await asyncio.gather(*(send(acme, f"still-{number}") for number in range(5))) == [1] * 5
    assert len(await fragile.rows()) == 5
    reasons = [fields["reason"] for name, fields in signals if name == "ingest.unlinked"]
    assert "does not answer" in str(reasons[0])


async def test_with_neither_nats_nor_database_nothing_is_claimed(
    fragile: FragilePlatform, acme: Sender, signals: Signals
) -> None:
    assert await send(acme, "1") == 0
    fragile.nats.kill()
    await until(lambda: not is_linked(signals))
    async with fragile.without_database():
        answer = await acme.send(event("2"))
        assert (answer.status_code, answer.json()["type"]) == (503, "urn:tenantry:problem:unavailable")
        assert int(answer.headers["Retry-After"]) >= 1
    await fragile.nats.start()
    await until(lambda: is_linked(signals))
    assert await fragile.rows() == []
    assert (await acme.send(event("2"))).status_code == 202


async def test_without_a_database_events_go_on_being_published(fragile: FragilePlatform, acme: Sender) -> None:
    assert await send(acme, "0") == 0
    async with fragile.without_database():
        for number in range(1, 20):
            assert await send(acme, str(number)) == 0
            await asyncio.sleep(0.1)
    assert len(await acme.stored()) == 20


async def test_when_jetstream_is_gone_events_go_to_the_outbox(fragile: FragilePlatform, acme: Sender) -> None:
    lane = await acme.lane()
    await fragile.administration.backbone.platform.delete_stream(lane.stream)
    assert await send(acme, "1") == 1
    assert [row["event_id"] for row in await fragile.rows()] == ["1"]


async def test_a_crowd_is_spooled_together_each_in_its_order(
    fragile: FragilePlatform, acme: Sender, signals: Signals
) -> None:
    globex = await make_sender(acme.api, "globex")
    for sender in (acme, globex):
        await send(sender, "first")
    fragile.nats.kill()
    await until(lambda: not is_linked(signals))

    async def stream(sender: Sender, name: str) -> None:
        for number in range(20):
            assert await send(sender, f"{name}-{number}") == 1

    await asyncio.gather(*(stream(sender, str(number)) for sender in (acme, globex) for number in range(8)))
    # A machine that is busy may answer the first ones too late, and they are spooled too.
    rows = [row for row in await fragile.rows() if row["event_id"] != "first"]
    assert len(rows) == 2 * 8 * 20
    for tenant in ("acme", "globex"):
        for name in range(8):
            ids = [row["event_id"] for row in rows if row["tenant_id"] == tenant]
            mine = [int(id.partition("-")[2]) for id in ids if id.startswith(f"{name}-")]
            assert mine == list(range(20))
    groups = [fields["events"] for name, fields in signals if name == "ingest.spooled"]
    assert len(groups) < len(rows) / 2


async def test_an_event_of_unknown_fate_is_stored_once(fragile: FragilePlatform, acme: Sender) -> None:
    """The broker may have stored what it could not acknowledge; the copy in the outbox has the same message id."""
    assert await send(acme, "1") == 0
    with fragile.nats.frozen():
        assert await send(acme, "2") == 1
    (row,) = await fragile.rows()
    lane = await acme.lane()
    repeated = nats_bulk.Message(f"{lane.prefix}.{row['type']}", row["document"].encode(), lane.message_id("2"))
    with connect_bulk(lane.broker, "test") as connection:
        nats_bulk.publish(connection, [repeated]).raise_for_errors()
    assert [each.headers["Nats-Msg-Id"] for each in await acme.stored()] == ["acme/1", "acme/2"]


async def test_nothing_is_lost_doubled_or_overtaken_while_nats_comes_and_goes(fragile: FragilePlatform) -> None:
    """With a relay, and senders that send one event after the other, each until it has a 202."""
    api = await fragile.start_api()
    senders = [await make_sender(api, name, tier=tier) for name, tier in (("a", "stream"), ("b", "pooled"))]
    sent: dict[str, list[int]] = {sender.tenant: [] for sender in senders}
    is_over = False

    async def keep_sending(sender: Sender) -> None:
        number = 0
        while not is_over:
            answer = await sender.send(event(str(number)))
            if answer.status_code == 202:
                sent[sender.tenant].append(answer.json()["spooled"])
                number += 1

    async def until_each_sent(spooled: int, count: int) -> None:
        before = {tenant: len(each) for tenant, each in sent.items()}
        await until(lambda: all(each[before[name] :].count(spooled) >= count for name, each in sent.items()), 60)

    async with fragile.relaying():
        sending = [asyncio.ensure_future(keep_sending(sender)) for sender in senders]
        await until_each_sent(0, 20)
        fragile.nats.kill()
        await until_each_sent(1, 20)
        await fragile.nats.start()
        await until_each_sent(0, 20)
        with fragile.nats.frozen():
            await until_each_sent(1, 5)
        await until_each_sent(0, 20)
        is_over = True
        await asyncio.gather(*sending)
        async with asyncio.timeout(60):
            while any(row["state"] == "pending" for row in await fragile.rows()):
                await asyncio.sleep(0.05)
    for sender in senders:
        numbers = [int(each.headers["Nats-Msg-Id"].partition("/")[2]) for each in await sender.stored()]
        assert numbers == list(range(len(sent[sender.tenant])))
