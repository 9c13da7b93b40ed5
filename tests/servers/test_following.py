"""Following a stream: in order, without holes, through restarts, and leaving nothing behind."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from datetime import UTC, datetime

import pytest
from nats.aio.client import Client
from nats.js.api import StreamConfig

from tenantry.errors import JetStreamRefused
from tenantry.nats.connections import Broker, connect
from tenantry.nats.following import Start, Stored, count_from, follow, next_sequence, sequence_of_last
from tests.own_server import OwnServer


@pytest.fixture
async def client(account: Broker) -> AsyncIterator[Client]:
    async with connect(account, "test") as opened:
        await opened.jetstream().add_stream(StreamConfig("LOG", subjects=["log.>"]))
        yield opened


async def take(messages: AsyncIterator[Stored], count: int) -> list[Stored]:
    taken: list[Stored] = []
    async with asyncio.timeout(60):
        async for stored in messages:
            taken.append(stored)
            if len(taken) == count:
                break
    return taken


async def test_it_begins_where_it_is_told_and_goes_on(client: Client) -> None:
    streams = client.jetstream()
    for number in range(3):
        await streams.publish("log.before", b"%d" % number)
    moment = datetime.now(UTC)
    for subject, start, expected in (
        ("log.>", Start(2), [2, 3, 4]),
        ("log.>", Start(await next_sequence(client, "LOG")), [4]),
        ("log.after", Start(1), [4]),
        ("log.>", Start(time=moment), [4]),
    ):
        async with aclosing(follow(client, "LOG", subject, start)) as messages:
            if await next_sequence(client, "LOG") == 4:
                await streams.publish("log.after", b"3")
            taken = await take(messages, len(expected))
        assert [stored.sequence for stored in taken] == expected
        assert taken[-1] == Stored(4, "log.after", taken[-1].time, b"3")
        assert taken[-1].time >= moment
    assert await streams.consumers_info("LOG") == []


async def test_it_ends_with_the_stream_and_says_when_it_is_refused(client: Client) -> None:
    streams = client.jetstream()
    assert [stored async for stored in follow(client, "NONE", "log.>", Start())] == []
    await streams.add_stream(StreamConfig("FULL", subjects=["full"], max_consumers=1))
    await streams.publish("full", b"")
    async with aclosing(follow(client, "FULL", "full", Start())) as first:
        await take(first, 1)
        with pytest.raises(JetStreamRefused, match="maximum consumers"):
            await take(follow(client, "FULL", "full", Start()), 1)
        await streams.delete_stream("FULL")
        async with asyncio.timeout(60):
            assert [stored async for stored in first] == []


async def test_it_goes_on_where_it_was_when_the_server_comes_back(own_nats: OwnServer) -> None:
    async with connect(Broker(own_nats.address), "test") as client, connect(Broker(own_nats.address), "other") as other:
        streams = other.jetstream()
        await streams.add_stream(StreamConfig("LOG", subjects=["log"]))
        await streams.publish("log", b"1")
        async with aclosing(follow(client, "LOG", "log", Start())) as messages:
            assert [stored.payload for stored in await take(messages, 1)] == [b"1"]
            own_nats.kill()
            await own_nats.start()
            while not other.is_connected:
                await asyncio.sleep(0.01)
            for number in range(2, 500):
                await streams.publish("log", b"%d" % number)
            taken = await take(messages, 498)
    assert [stored.payload for stored in taken] == [b"%d" % number for number in range(2, 500)]


async def test_a_reader_that_is_slow_misses_nothing(client: Client) -> None:
    payload = b"x" * 60_000
    for _ in range(400):
        await client.publish("log.large", payload)
    await client.flush()
    async with aclosing(follow(client, "LOG", "log.large", Start())) as messages:
        await take(messages, 1)
        taken = await take(messages, 399)
    assert [stored.sequence for stored in taken] == list(range(2, 401))


async def test_the_last_so_many_are_found_among_others_and_behind_holes(client: Client) -> None:
    streams = client.jetstream()
    for number in range(1, 101):
        await streams.publish("log.seventh" if number % 7 == 0 else "log.other", b"")
    for number in (98, 97, 96, 50):
        await streams.delete_msg("LOG", number)
    assert await sequence_of_last(client, "LOG", "log.>", 1) == 100
    for count in (1, 2, 5, 12, 13, 14, 1000):
        start = await sequence_of_last(client, "LOG", "log.seventh", count)
        assert await count_from(client, "LOG", "log.seventh", start) == min(count, 13)
    start = await sequence_of_last(client, "LOG", "log.>", 10)
    assert await count_from(client, "LOG", "log.>", start) == 10
    assert await streams.consumers_info("LOG") == []
