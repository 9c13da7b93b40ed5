"""Range read against the real server: all of the range, in order, and nothing taken for lost that is not."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from nats.aio.client import Client
from nats.js.api import StreamConfig

import nats_bulk
from nats_bulk import Message
from tenantry.nats.connections import Broker, connect, connect_bulk


async def make(broker: Broker, count: int, **options: object) -> None:
    async with connect(broker, "test") as client:
        config = StreamConfig(name="EVENTS", subjects=["events.>"], allow_direct=True, **options)  # type: ignore[arg-type]
        await client.jetstream().add_stream(config)
    with connect_bulk(broker, "test") as connection:
        nats_bulk.publish(connection, [Message("events.a", b"%d" % n) for n in range(1, count + 1)]).raise_for_errors()


def read(broker: Broker, first: int, last: int, **options: Any) -> tuple[list[int], list[tuple[int, int]]]:
    sequences: list[int] = []
    gaps: list[tuple[int, int]] = []
    with connect_bulk(broker, "test") as connection:
        for batch in nats_bulk.read_range(connection, "EVENTS", first, last, **options):
            assert [int(payload) for payload in batch.payloads] == batch.sequences
            sequences += batch.sequences
            gaps += batch.gaps
    return sequences, gaps


def covered(sequences: list[int], gaps: list[tuple[int, int]]) -> list[int]:
    return sorted(sequences + [missing for first, last in gaps for missing in range(first, last + 1)])


async def test_a_range_is_read_whole_and_in_order_whatever_the_batch(account: Broker) -> None:
    await make(account, 1000)
    for batch in (1, 7, 256, 5000):
        assert read(account, 101, 900, batch=batch) == (list(range(101, 901)), [])
    assert read(account, 1, 1000, batch_bytes=500) == (list(range(1, 1001)), [])
    assert read(account, 5, 4) == ([], [])


async def test_columns_hold_subject_time_and_headers(account: Broker) -> None:
    await make(account, 1)
    before = time.time_ns()
    with connect_bulk(account, "test") as connection:
        nats_bulk.publish(connection, [Message("events.b.c", b"2", "two", {"k": "v"})])
        (batch,) = nats_bulk.read_range(connection, "EVENTS", 1, 2)
    assert batch.subjects == ["events.a", "events.b.c"]
    assert batch.sequences == [1, 2]
    assert before - 5_000_000_000 < batch.timestamps[1] < time.time_ns() + 5_000_000_000
    assert batch.timestamps[0] <= batch.timestamps[1]
    assert nats_bulk.parse_headers(batch.headers[1]) == {"Nats-Msg-Id": ["two"], "k": ["v"]}


async def test_deleted_messages_are_gaps(account: Broker) -> None:
    await make(account, 100)
    async with connect(account, "test") as client:
        streams = client.jetstream()
        for sequence in (1, 2, 50, 77, 78, 79, 100):
            await streams.delete_msg("EVENTS", sequence)
    sequences, gaps = read(account, 1, 100, batch=30)
    assert covered(sequences, gaps) == list(range(1, 101))
    assert covered([], gaps) == [1, 2, 50, 77, 78, 79, 100]


async def test_many_gaps_are_confirmed_many_at_a_time(account: Broker) -> None:
    # One message a subject is kept, so every other sequence is gone.
    await make(account, 0, max_msgs_per_subject=1)
    with connect_bulk(account, "test") as connection:
        nats_bulk.publish(
            connection,
            [Message(f"events.{n if n % 2 else 'same'}", b"%d" % n) for n in range(1, 2001)],
        ).raise_for_errors()
    sequences, gaps = read(account, 1, 2000)
    assert covered(sequences, gaps) == list(range(1, 2001))
    assert sequences == [*range(1, 2000, 2), 2000]


async def test_a_purged_stream_is_one_gap(account: Broker) -> None:
    await make(account, 50)
    async with connect(account, "test") as client:
        await client.jetstream().purge_stream("EVENTS")
    assert read(account, 10, 50) == ([], [(10, 50)])


async def test_a_range_beyond_the_end_is_refused(account: Broker) -> None:
    await make(account, 10)
    with pytest.raises(nats_bulk.RangeBeyondEnd, match="to reach sequence 20, but it ends at 10"):
        read(account, 5, 20)


async def test_a_missing_stream_and_one_without_direct_get_say_so(account: Broker) -> None:
    with connect_bulk(account, "test") as connection:
        with pytest.raises(nats_bulk.StreamNotReadable, match="stream not found"):
            list(nats_bulk.read_range(connection, "NONE", 1, 1))
        async with connect(account, "test") as client:
            await client.jetstream().add_stream(StreamConfig(name="PLAIN", subjects=["plain"], allow_direct=False))
        with pytest.raises(nats_bulk.StreamNotReadable, match="set allow_direct"):
            list(nats_bulk.read_range(connection, "PLAIN", 1, 1))


async def test_headers_that_pretend_to_be_the_servers_are_not_believed(account: Broker) -> None:
    await make(account, 0)
    forged = {"Nats-Sequence": "999", "Nats-Subject": "events.other", "Nats-Stream": "OTHER", "Nats-Num-Pending": "0"}
    with connect_bulk(account, "test") as connection:
        nats_bulk.publish(connection, [Message("events.mine", b"1", headers=forged)]).raise_for_errors()
        (batch,) = nats_bulk.read_range(connection, "EVENTS", 1, 1)
    assert batch.sequences == [1]
    assert batch.subjects == ["events.mine"]


async def test_a_subject_that_is_not_text_does_not_keep_the_rest_from_being_read(account: Broker) -> None:
    await make(account, 1)
    with connect_bulk(account, "test") as connection:
        connection.send(b"PUB events.\xff 1\r\n2\r\n")
    with connect_bulk(account, "test") as connection:
        nats_bulk.publish(connection, [Message("events.a", b"3")]).raise_for_errors()
    assert read(account, 1, 3) == ([1, 2, 3], [])


async def test_late_acknowledgements_do_not_disturb_a_reader(account: Broker) -> None:
    await make(account, 10)

    def broken_off() -> Iterator[Message]:
        for number in range(5000):
            yield Message("events.a", b"%d" % number)
        raise KeyError("the source broke")

    with connect_bulk(account, "test") as connection:
        with pytest.raises(KeyError):
            nats_bulk.publish(connection, broken_off())
        (batch,) = nats_bulk.read_range(connection, "EVENTS", 1, 10)
    assert batch.sequences == list(range(1, 11))


@pytest.mark.parametrize("stream", ["A.B", "A B", "A\r\nPUB events.a 0\r\n", "*", ""])
async def test_what_is_not_the_name_of_a_stream_never_reaches_the_wire(account: Broker, stream: str) -> None:
    with connect_bulk(account, "test") as connection, pytest.raises((ValueError, nats_bulk.InvalidMessage)):
        list(nats_bulk.read_range(connection, stream, 1, 1))


async def mirror(client: Client, count: int) -> None:
    """Make a mirror that answers direct gets for its origin, and wait until it has all of it."""
    config = {"name": "MIRROR", "mirror": {"name": "EVENTS"}, "mirror_direct": True, "storage": "file"}
    await client.request("$JS.API.STREAM.CREATE.MIRROR", msgspec.json.encode(config))
    async with asyncio.timeout(20):
        while (await client.jetstream().stream_info("MIRROR")).state.last_seq < count:
            await asyncio.sleep(0.02)


async def test_a_replica_that_lacks_messages_is_never_believed(account: Broker) -> None:
    """A mirror answers direct gets for its origin; emptied, it is the worst of lagging replicas."""
    await make(account, 200)
    async with connect(account, "test") as client:
        await mirror(client, 200)
        await client.request("$JS.API.STREAM.PURGE.MIRROR", b'{"seq":120}')
        for sequence in range(130, 200, 3):
            answer = await client.request("$JS.API.STREAM.MSG.DELETE.MIRROR", b'{"seq":%d}' % sequence)
            assert b'"success":true' in answer.data
    for _ in range(30):
        assert read(account, 1, 200, batch=40) == (list(range(1, 201)), [])


async def test_the_empty_mirror_does_answer_for_its_origin(account: Broker) -> None:
    """Without this the test above could pass because the mirror is never asked."""
    await make(account, 50)
    async with connect(account, "test") as client:
        await mirror(client, 50)
        await client.request("$JS.API.STREAM.PURGE.MIRROR", b"")
        answers = [await client.request("$JS.API.DIRECT.GET.EVENTS", b'{"seq":1}') for _ in range(100)]
    statuses = {(answer.headers or {}).get("Status") for answer in answers}
    assert statuses == {None, "404"}
