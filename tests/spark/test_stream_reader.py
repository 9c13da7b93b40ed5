"""What a streaming query decides on the driver and reads in its tasks, on a real server."""

from __future__ import annotations

import asyncio
import json
import logging
import shutil
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

import nats_bulk
from nats_bulk import Message, ServerRefused, StreamNotReadable
from pyspark_nats import Access, CatalogInvalid, DataLost, OptionInvalid, Stream, StreamsUnavailable
from pyspark_nats.batch_reader import NatsReader
from pyspark_nats.broker import Broker
from pyspark_nats.connections import CONNECTIONS
from pyspark_nats.options import ReadOptions
from tests.own_server import OwnServer
from tests.processes import wait_for
from tests.spark.engine import Query, Row
from tests.spark.jet import Jet


def sequences(rows: list[Row], stream: str) -> list[int]:
    return [row.sequence for row in rows if row.stream == stream]


# -- where it starts ------------------------------------------------------------------------------------------------


def test_a_query_starts_at_the_earliest_message(jet: Jet) -> None:
    jet.make("ORDERS")
    jet.fill("ORDERS", 5)
    jet.purge("ORDERS", keep=3)
    assert sequences(Query(jet.url, streams="ORDERS").trigger(), "ORDERS") == [3, 4, 5]


def test_a_query_that_starts_at_the_latest_reads_what_comes_after(jet: Jet) -> None:
    jet.make("ORDERS", "EMPTY")
    jet.fill("ORDERS", 5)
    query = Query(jet.url, streams="ORDERS,EMPTY", startingOffsets="latest")
    assert query.trigger() == []
    jet.fill("ORDERS", 1)
    jet.fill("EMPTY", 1)
    jet.make("LATER")
    assert [(row.stream, row.sequence) for row in query.trigger()] == [("EMPTY", 1), ("ORDERS", 6)]


def test_a_stream_that_appears_is_read_from_its_beginning_whatever_the_start(jet: Jet) -> None:
    jet.make("TENANT_A")
    query = Query(jet.url, streams="TENANT_*", startingOffsets="latest")
    query.trigger()
    jet.make("TENANT_B", "OTHER")
    jet.fill("TENANT_B", 3)
    jet.fill("OTHER", 3)
    assert [(row.stream, row.sequence) for row in query.trigger()] == [("TENANT_B", number) for number in (1, 2, 3)]


def test_a_query_starts_at_given_sequences(jet: Jet) -> None:
    jet.make("A", "B", "C")
    for name in "ABC":
        jet.fill(name, 4)
    rows = Query(jet.url, streams="A,B,C", startingOffsets='{"A": 3, "B": -1}').trigger()
    assert (sequences(rows, "A"), sequences(rows, "B"), sequences(rows, "C")) == ([3, 4], [], [1, 2, 3, 4])


@pytest.mark.parametrize(("offsets", "complaint"), [('{"B": 1}', "one for B"), ('{"A": 6}', "of A up to 5")])
def test_offsets_that_make_no_sense_are_refused(jet: Jet, offsets: str, complaint: str) -> None:
    jet.make("A", "B")
    jet.fill("A", 4)
    with pytest.raises(OptionInvalid, match=complaint):
        Query(jet.url, streams="A", startingOffsets=offsets).trigger()


def test_a_query_starts_at_a_time_also_after_a_purge(jet: Jet) -> None:
    jet.make("A", "B", "EMPTY")
    jet.fill("A", 300)
    jet.purge("A", keep=200)
    jet.drop("A", 200)
    jet.fill("B", 1)
    stamps = {
        number: jet.ask("STREAM.MSG.GET.A", {"seq": number})["message"]["time"] for number in (101, 150, 199, 201, 300)
    }
    gaps = {"failOnDataLoss": "false"}
    for number, stamp in stamps.items():
        # To the microsecond, as Python reads it; the server stamps to the nanosecond, so some may share one.
        rows = Query(jet.url, streams="A,B,EMPTY", startingTimestamp=f"{stamp[:26].rstrip('Z')}Z", **gaps).trigger()
        found = sequences(rows, "A")
        assert found[-1] == 300
        assert 0 <= number - found[0] <= 20
        assert number in found
        assert sequences(rows, "B") == [1]
    assert Query(jet.url, streams="A", startingTimestamp="2100-01-01").trigger() == []


def test_a_batch_read_ends_at_a_time(jet: Jet) -> None:
    jet.make("A")
    jet.fill("A", 20)
    wait_for(lambda: datetime.now(UTC) > datetime.fromisoformat(jet.state("A")["last_ts"][:26]).replace(tzinfo=UTC))
    between = datetime.now(UTC).isoformat()
    jet.fill("A", 20)
    options = {"nats.url": jet.url, "streams": "A"}
    for moments, expected in (
        ({"endingTimestamp": between}, range(1, 21)),
        ({"startingTimestamp": between}, range(21, 41)),
        ({"startingTimestamp": between, "endingTimestamp": between}, range(0)),
    ):
        reader = NatsReader(ReadOptions.parse(options | moments, streaming=False))
        rows = [row for task in reader.partitions() for batch in reader.read(task) for row in batch.to_pylist()]
        assert [row["sequence"] for row in rows] == list(expected)


def test_a_stream_that_is_named_must_exist(jet: Jet) -> None:
    jet.make("ORDERS")
    with pytest.raises(StreamsUnavailable, match="there is no stream ODRERS in this account"):
        Query(jet.url, streams="ORDERS,ODRERS").trigger()


def test_a_pattern_may_match_nothing_yet(jet: Jet) -> None:
    query = Query(jet.url, streams="TENANT_*")
    assert query.trigger() == []
    jet.make("TENANT_A")
    jet.fill("TENANT_A", 1)
    assert sequences(query.trigger(), "TENANT_A") == [1]


def test_a_stream_without_direct_get_is_refused_by_name_and_waits_in_a_pattern(
    jet: Jet, caplog: pytest.LogCaptureFixture
) -> None:
    jet.make("TENANT_A")
    jet.make("TENANT_B", allow_direct=False)
    jet.fill("TENANT_A", 1)
    jet.fill("TENANT_B", 1)
    with pytest.raises(StreamsUnavailable, match="TENANT_B cannot be read: it does not allow direct get: set allow"):
        Query(jet.url, streams="TENANT_A,TENANT_B").trigger()
    query = Query(jet.url, streams="TENANT_*")
    with caplog.at_level(logging.WARNING):
        assert sequences(query.trigger(), "TENANT_A") == [1]
    assert "stream TENANT_B is not read now: it does not allow direct get" in caplog.text
    jet.ask("STREAM.UPDATE.TENANT_B", {"name": "TENANT_B", "subjects": ["TENANT_B.>"], "allow_direct": True})
    assert sequences(query.trigger(), "TENANT_B") == [1]


def test_a_server_that_is_not_there_is_named() -> None:
    with pytest.raises(StreamsUnavailable, match=r"cannot connect to 127\.0\.0\.1:1"):
        Broker(Access("nats://127.0.0.1:1"), patience=0.0).list_all()


async def test_a_user_needs_no_more_than_the_page_says(tmp_path: Path) -> None:
    """Neither to read one stream by its name nor to skip what is gone from it; a pattern needs to list."""
    few = ", ".join(f'"$JS.API.{verb}.A"' for verb in ("STREAM.INFO", "STREAM.MSG.GET", "DIRECT.GET"))
    users = f"""
        {{ user: all, password: all }}
        {{ user: few, password: few, permissions: {{ publish: [{few}], subscribe: "_INBOX.>" }} }}
    """
    (tmp_path / "guarded").mkdir()
    server = OwnServer(tmp_path / "guarded", f"authorization {{ users = [ {users} ] }}")
    await server.start()
    try:
        with Jet(f"nats://all:all@{server.address}") as jet:
            jet.make("A", "B")
            jet.fill("A", 5)
            jet.drop("A", 3)
        url = f"nats://few:few@{server.address}"
        rows = Query(url, streams="A", failOnDataLoss="false").trigger()
        assert sequences(rows, "A") == [1, 2, 4, 5]
        with pytest.raises(ServerRefused, match=r"STREAM\.LIST"):
            Query(url, streams="A*").trigger()
        with pytest.raises(StreamsUnavailable, match=r"stream B cannot be read: .*STREAM\.INFO\.B"):
            Query(url, streams="B").trigger()
    finally:
        await server.stop()


# -- what a batch holds ----------------------------------------------------------------------------------------------


def test_a_flood_in_one_stream_leaves_all_the_others_in_the_first_batch(jet: Jet) -> None:
    jet.make("FLOOD", *(f"SMALL_{number}" for number in range(99)))
    jet.fill("FLOOD", 20_000)
    for number in range(99):
        jet.fill(f"SMALL_{number}", 10)
    query = Query(jet.url, streams="FLOOD,SMALL_*", maxOffsetsPerTrigger="2000")
    rows = query.trigger()
    assert len(rows) == 2000
    assert sum(row.stream != "FLOOD" for row in rows) == 990
    assert len(query.trigger()) == 2000


def test_a_limit_from_spark_is_kept_and_all_available_means_all(jet: Jet) -> None:
    jet.make("A", "B")
    jet.fill("A", 50)
    jet.fill("B", 50)
    query = Query(jet.url, streams="A,B", maxOffsetsPerTrigger="10")
    assert len(query.trigger(ReadMaxRows(4))) == 4
    assert len(query.trigger()) == 10
    assert len(query.trigger(ReadAllAvailable())) == 86


def test_available_now_reads_what_was_there_and_comes_to_an_end(jet: Jet) -> None:
    jet.make("A")
    jet.fill("A", 25)
    query = Query(jet.url, streams="*", maxOffsetsPerTrigger="10")
    query.available_now()
    counts = []
    while rows := query.trigger():
        counts.append(len(rows))
        jet.fill("A", 5)
        if len(counts) == 1:
            jet.make("B")
            jet.fill("B", 5)
    assert counts == [10, 10, 5]
    query.restart()
    query.available_now()
    assert len(query.trigger()) == 10


def test_the_latest_offset_is_reported_so_that_progress_shows_the_lag(jet: Jet) -> None:
    jet.make("A", "B")
    jet.fill("A", 25)
    query = Query(jet.url, streams="A,B", maxOffsetsPerTrigger="10")
    query.trigger()
    assert query.reader.reportLatestOffset() == {"A": 26, "B": 1}
    assert json.loads(query.log[-1])["A"] == 11


def test_subjects_choose_messages_and_the_rest_is_passed_over(jet: Jet) -> None:
    jet.make("A")
    for type in ("order.created", "order.paid", "user.created", "order.created"):
        jet.publish("A", b"", type=type)
    query = Query(jet.url, streams="A", subjects="A.*.created,nothing")
    assert sequences(query.trigger(), "A") == [1, 3, 4]
    assert query.trigger() == []


def test_headers_come_when_asked_for_with_every_value(jet: Jet) -> None:
    jet.make("A")
    jet.publish("A", b"x", headers={"traceparent": "00-1", "Ort": "Zürich"})
    jet.publish("A", b"y")
    twice = b"NATS/1.0\r\nA: 1\r\nA: 2\r\n\r\n"
    jet.connection.send(b"HPUB A.event %d %d\r\n%bz\r\n" % (len(twice), len(twice) + 1, twice))
    wait_for(lambda: jet.state("A")["messages"] == 3)
    query = Query(jet.url, streams="A", includeHeaders="true")
    query.plan()
    batch = next(query.reader.read(query.tasks(0)[0]))
    headers = [dict(row["headers"]) for row in batch.to_pylist()]
    assert headers == [{"traceparent": ["00-1"], "Ort": ["Zürich"]}, {}, {"A": ["1", "2"]}]


# -- tasks -----------------------------------------------------------------------------------------------------------


def test_tasks_keep_each_stream_whole_and_are_the_same_when_a_batch_is_read_again(jet: Jet) -> None:
    jet.make(*(f"T_{number}" for number in range(10)))
    for number in range(10):
        jet.fill(f"T_{number}", 100 * (number + 1))
    query = Query(jet.url, streams="T_*", minPartitions="4")
    query.plan()
    before = query.read_by_task(0)
    assert len(before) == 4
    assert sum(len({row.stream for row in rows}) for rows in before) == 10
    assert max(map(len, before)) < 2500
    # Other sizes would be laid out otherwise, but this batch is written down.
    jet.fill("T_0", 5000, size=500)
    query.restart(minPartitions="2")
    assert query.read_by_task(0) == before


def test_without_order_one_stream_is_spread_over_tasks(jet: Jet) -> None:
    jet.make("A")
    jet.fill("A", 1000)
    query = Query(jet.url, streams="A", minPartitions="4", order="false")
    query.plan()
    tasks = query.read_by_task(0)
    assert [len(rows) for rows in tasks] == [250, 250, 250, 250]
    assert [row.sequence for rows in tasks for row in rows] == list(range(1, 1001))


def test_tasks_do_not_show_how_to_reach_the_server(jet: Jet) -> None:
    jet.make("A")
    jet.fill("A", 1)
    query = Query(jet.url.replace("nats://", "nats://me:secret@"), streams="A")
    query.plan()
    assert "secret" not in repr(query.tasks(0)) + str(query.tasks(0)) + "".join(query.log)


# -- what is lost ------------------------------------------------------------------------------------------------------


def test_messages_that_expired_before_they_were_read_fail_the_query_and_are_named(jet: Jet) -> None:
    jet.make("A")
    jet.fill("A", 10)
    query = Query(jet.url, streams="A", maxOffsetsPerTrigger="4")
    query.trigger()
    jet.purge("A", keep=2)
    with pytest.raises(DataLost, match=r"stream A no longer has sequences 5 to 8.*failOnDataLoss to false"):
        query.trigger()
    query.restart(failOnDataLoss="false")
    assert sequences(query.trigger(), "A") == [9, 10]


def test_a_deleted_message_in_the_middle_is_a_loss_too(jet: Jet) -> None:
    jet.make("A")
    jet.fill("A", 10)
    jet.drop("A", 4)
    jet.drop("A", 5)
    with pytest.raises(DataLost, match=r"stream A no longer has sequences 4 to 5"):
        Query(jet.url, streams="A").trigger()
    assert sequences(Query(jet.url, streams="A", failOnDataLoss="false").trigger(), "A") == [1, 2, 3, 6, 7, 8, 9, 10]


def test_what_expires_between_planning_and_reading_is_a_loss(jet: Jet, caplog: pytest.LogCaptureFixture) -> None:
    jet.make("A")
    jet.fill("A", 10)
    query = Query(jet.url, streams="A")
    query.plan()
    jet.purge("A")
    with pytest.raises(DataLost, match=r"stream A no longer has sequences 1 to 10"):
        query.read(0)
    query.restart(failOnDataLoss="false")
    with caplog.at_level(logging.WARNING):
        assert query.read(0) == []
    assert "stream A no longer has sequences 1 to 10" in caplog.text


def test_the_first_batch_is_written_down_with_its_beginning(jet: Jet) -> None:
    """Spark keeps where the first batch ends, and asks again where a query begins."""
    jet.make("A", "B")
    jet.fill("A", 10)
    query = Query(jet.url, streams="A,B", startingOffsets='{"A": 3}')
    query.plan()
    query.restart(startingOffsets="earliest")
    assert sequences(query.read(0), "A") == [3, 4, 5, 6, 7, 8, 9, 10]
    jet.purge("A", keep=2)
    query.restart()
    with pytest.raises(DataLost, match="stream A no longer has sequences 3 to 8"):
        query.read(0)


def test_after_a_loss_the_query_is_where_the_stream_is(jet: Jet) -> None:
    jet.make("A")
    jet.fill("A", 10)
    query = Query(jet.url, streams="A", maxOffsetsPerTrigger="4", failOnDataLoss="false")
    query.trigger()
    jet.purge("A")
    assert query.trigger() == []
    assert json.loads(query.log[-1])["A"] == 11
    assert query.reader.reportLatestOffset() == {"A": 11}
    query.restart(failOnDataLoss="true")
    assert query.trigger() == []
    assert not query.planned


def test_skipping_what_is_lost_costs_no_batches(jet: Jet) -> None:
    jet.make("A")
    jet.fill("A", 1)
    query = Query(jet.url, streams="A", maxOffsetsPerTrigger="10", failOnDataLoss="false")
    query.trigger()
    jet.fill("A", 5000)
    jet.purge("A", keep=5)
    assert sequences(query.trigger(), "A") == [4997, 4998, 4999, 5000, 5001]


def test_a_stream_made_anew_after_its_end_was_noticed_is_read_from_its_beginning(jet: Jet) -> None:
    jet.make("A")
    jet.fill("A", 10)
    query = Query(jet.url, streams="*")
    query.trigger()
    jet.delete("A")
    assert query.trigger() == []
    jet.make("A")
    jet.fill("A", 3)
    assert sequences(query.trigger(), "A") == [1, 2, 3]


@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.parametrize("more", [3, 30])
def test_a_stream_made_anew_under_its_old_name_is_not_taken_for_the_old_one(
    jet: Jet, restarted: bool, more: int
) -> None:
    jet.make("A", "B")
    jet.fill("A", 10)
    query = Query(jet.url, streams="A,B")
    query.trigger()
    jet.delete("A")
    jet.make("A")
    jet.fill("A", more)
    if restarted:
        query.restart()
    assert sequences(query.trigger(), "A") == list(range(1, more + 1))
    assert query.trigger() == []


def test_a_stream_made_anew_while_it_could_not_be_read_is_not_taken_for_the_old_one(jet: Jet) -> None:
    jet.make("A")
    jet.fill("A", 5)
    query = Query(jet.url, streams="*")
    query.trigger()
    jet.delete("A")
    jet.make("A", allow_direct=False)
    jet.make("B")
    jet.fill("A", 7)
    jet.fill("B", 1)
    assert sequences(query.trigger(), "B") == [1]
    jet.ask("STREAM.UPDATE.A", {"name": "A", "subjects": ["A.>"], "allow_direct": True})
    assert sequences(query.trigger(), "A") == [1, 2, 3, 4, 5, 6, 7]


def test_a_stream_that_cannot_be_read_for_now_is_not_passed_over(jet: Jet) -> None:
    """Only what is gone is a loss; all else is an error, whatever failOnDataLoss says."""
    jet.make("A")
    jet.fill("A", 5)
    query = Query(jet.url, streams="A", failOnDataLoss="false")
    query.plan()
    jet.ask("STREAM.UPDATE.A", {"name": "A", "subjects": ["A.>"], "allow_direct": False})
    with pytest.raises(StreamNotReadable, match="does not allow direct get"):
        query.read(0)
    jet.ask("STREAM.UPDATE.A", {"name": "A", "subjects": ["A.>"], "allow_direct": True})
    assert sequences(query.read(0), "A") == [1, 2, 3, 4, 5]


def test_a_stream_that_is_deleted_while_nobody_looks_just_goes_if_all_of_it_was_read(jet: Jet) -> None:
    jet.make("A", "B", "C")
    for name in "ABC":
        jet.fill(name, 4)
    query = Query(jet.url, streams="*", maxOffsetsPerTrigger="9")
    query.trigger()
    query.trigger()
    jet.delete("A")
    query.restart()
    assert query.trigger() == []
    jet.fill("B", 20)
    query.trigger()
    jet.delete("B")
    query.restart()
    with pytest.raises(DataLost, match="stream B was deleted with 11 messages unread, from sequence 14 on"):
        query.trigger()


def test_names_that_cannot_be_subjects_wait_and_brackets_are_no_pattern(
    jet: Jet, caplog: pytest.LogCaptureFixture
) -> None:
    for subject, name in {"odd": 'O_"B"', "even": "O_[1]"}.items():
        # As others would: our own connection does not send to such a subject.
        config = json.dumps({"name": name, "subjects": [subject], "allow_direct": True}).encode()
        jet.connection.send(b"PUB $JS.API.STREAM.CREATE.%b %d\r\n%b\r\n" % (name.encode(), len(config), config))
    wait_for(lambda: jet.ask("STREAM.NAMES")["total"] == 2)
    nats_bulk.publish(jet.connection, [Message("even", b"")]).raise_for_errors()
    assert sequences(Query(jet.url, streams="O_[1]").trigger(), "O_[1]") == [1]
    with caplog.at_level(logging.WARNING):
        assert sequences(Query(jet.url, streams="O_*").trigger(), "O_[1]") == [1]
    assert "its name has characters that a subject must not have" in caplog.text


@pytest.mark.parametrize("restarted", [False, True])
def test_a_stream_made_anew_before_all_of_it_was_read_is_a_loss(jet: Jet, restarted: bool) -> None:
    jet.make("A")
    jet.fill("A", 10)
    query = Query(jet.url, streams="A", maxOffsetsPerTrigger="4")
    query.trigger()
    jet.delete("A")
    jet.make("A")
    jet.fill("A", 3)
    if restarted:
        query.restart()
    with pytest.raises(DataLost, match="stream A was deleted and made anew with 6 messages unread, from 5 on"):
        query.trigger()
    query.restart(failOnDataLoss="false")
    assert sequences(query.trigger(), "A") == [1, 2, 3]


def test_a_stream_made_anew_is_noticed_even_if_it_stays_empty_while_others_go_on(jet: Jet) -> None:
    jet.make("A", "B")
    jet.fill("A", 10)
    query = Query(jet.url, streams="*", failOnDataLoss="false")
    query.trigger()
    jet.delete("A")
    jet.make("A", "C")
    jet.fill("B", 1)
    jet.fill("C", 1)
    assert len(query.trigger()) == 2
    query.restart()
    jet.fill("A", 20)
    assert sequences(query.trigger(), "A") == list(range(1, 21))


async def test_a_stream_that_lost_its_end_goes_on_where_it_goes_on(own_nats: OwnServer, tmp_path: Path) -> None:
    """As after a power failure: what the server had not yet on its disk is gone, and its sequences are used again."""
    store, kept = tmp_path / "own-nats" / "store", tmp_path / "kept"
    with Jet(f"nats://{own_nats.address}") as jet:
        jet.make("A")
        jet.fill("A", 5)
        await own_nats.stop()
        shutil.copytree(store, kept)
        await own_nats.start()
        jet.connection.reconnect()
        jet.fill("A", 5)
        query = Query(jet.url, streams="A")
        assert len(query.trigger()) == 10
        await own_nats.stop()
        shutil.rmtree(store)
        kept.rename(store)
        await own_nats.start()
        jet.connection.reconnect()
        jet.publish("A", b"new")
        with pytest.raises(DataLost, match="stream A ends at sequence 6, but 10 had been read"):
            query.trigger()
        query.restart(failOnDataLoss="false")
        assert query.trigger() == []
        query.restart(failOnDataLoss="true")
        jet.fill("A", 8)
        assert sequences(query.trigger(), "A") == [7, 8, 9, 10, 11, 12, 13, 14]


def test_a_stream_that_is_deleted_after_all_of_it_was_read_just_goes(jet: Jet) -> None:
    jet.make("A", "B")
    jet.fill("A", 10)
    query = Query(jet.url, streams="*")
    query.trigger()
    jet.delete("A")
    assert query.trigger() == []
    assert not query.planned, "an offset that changes without anything to read is an empty batch, again and again"
    jet.fill("B", 1)
    assert sequences(query.trigger(), "B") == [1]
    assert "A" not in json.loads(query.log[-1])
    jet.make("A")
    jet.fill("A", 2)
    assert sequences(query.trigger(), "A") == [1, 2]


def test_a_stream_that_is_deleted_with_messages_unread_is_a_loss(jet: Jet) -> None:
    jet.make("A", "B")
    jet.fill("A", 10)
    query = Query(jet.url, streams="*", maxOffsetsPerTrigger="4")
    query.trigger()
    jet.delete("A")
    with pytest.raises(DataLost, match="stream A was deleted with 6 messages unread, from sequence 5 on"):
        query.trigger()
    query.restart(failOnDataLoss="false")
    assert query.trigger() == []


def test_a_query_told_to_read_other_streams_leaves_the_old_ones_where_they_were(jet: Jet) -> None:
    jet.make("A", "B")
    jet.fill("A", 2)
    query = Query(jet.url, streams="A")
    query.plan()
    jet.fill("A", 3)
    jet.fill("B", 1)
    query.restart(streams="B")
    assert sequences(query.read(0), "A") == [1, 2], "what was planned is read"
    assert [(row.stream, row.sequence) for row in query.trigger()] == [("B", 1)]
    query.restart(streams="A,B")
    assert sequences(query.trigger(), "A") == [3, 4, 5]
    query.restart(streams="B")
    jet.delete("A")
    assert query.trigger() == []


def test_a_replica_that_lacks_messages_is_not_believed(jet: Jet) -> None:
    """A mirror answers direct gets for its origin; emptied, it is the worst of lagging followers."""
    jet.make("ORDERS")
    jet.fill("ORDERS", 200)
    jet.ask("STREAM.CREATE.MIRROR", {"name": "MIRROR", "mirror": {"name": "ORDERS"}, "mirror_direct": True})
    wait_for(lambda: jet.state("MIRROR")["last_seq"] == 200)
    jet.purge("MIRROR", seq=150)
    for _ in range(20):
        assert sequences(Query(jet.url, streams="ORDERS").trigger(), "ORDERS") == list(range(1, 201))
    assert min(len(answer) for answer in direct_gets(jet, "ORDERS", 40)) == 0, "the mirror was never asked"


def direct_gets(jet: Jet, stream: str, times: int) -> list[bytes]:
    """What whoever answers has at sequence 1."""
    return jet.connection.request_many([(f"$JS.API.DIRECT.GET.{stream}", b'{"seq": 1}')] * times)


# -- a catalog of one's own ------------------------------------------------------------------------------------------

LISTED: dict[str, Stream] = {}


def listed(options: dict[str, str]) -> list[Stream]:
    return list(LISTED.values())


@pytest.fixture
def catalog() -> Any:
    LISTED.clear()
    yield LISTED
    LISTED.clear()


def test_a_catalog_gives_weights_and_groups(jet: Jet, catalog: dict[str, Stream]) -> None:
    names = ("HEAVY", "LIGHT", "MANY_1", "MANY_2", "MANY_3")
    jet.make(*names)
    for name in names:
        jet.fill(name, 1000)
        catalog[name] = Stream(name, weight=3 if name == "HEAVY" else 1, group=name.partition("_")[0])
    rows = Query(jet.url, catalog=f"{__name__}:listed", maxOffsetsPerTrigger="500").trigger()
    counts = {name: len(sequences(rows, name)) for name in names}
    assert counts == {"HEAVY": 300, "LIGHT": 100, "MANY_1": 34, "MANY_2": 33, "MANY_3": 33}


def test_a_catalog_says_how_to_reach_each_stream_and_what_rows_call_it(jet: Jet, catalog: dict[str, Stream]) -> None:
    jet.make("EVENTS")
    jet.fill("EVENTS", 2)
    catalog["acme"] = Stream("EVENTS", key="acme/events", access=Access(jet.url))
    query = Query("", catalog=f"{__name__}:listed")
    assert [(row.stream, row.sequence) for row in query.trigger()] == [("acme/events", 1), ("acme/events", 2)]
    assert json.loads(query.log[-1])["acme/events"] == 3


def test_a_catalog_without_addresses_needs_one_in_the_options(catalog: dict[str, Stream]) -> None:
    catalog["A"] = Stream("A")
    with pytest.raises(
        OptionInvalid, match=r"expected the option nats\.url, for the catalog does not say how to reach A"
    ):
        Query("", catalog=f"{__name__}:listed").trigger()


def test_a_stream_that_leaves_the_catalog_is_read_to_where_it_ended_and_remembered(
    jet: Jet, catalog: dict[str, Stream]
) -> None:
    jet.make("A", "B")
    jet.fill("A", 10)
    jet.fill("B", 1)
    catalog |= {"A": Stream("A"), "B": Stream("B")}
    query = Query(jet.url, catalog=f"{__name__}:listed", maxOffsetsPerTrigger="4")
    query.trigger()
    del catalog["A"]
    assert len(query.trigger()) == 4
    jet.fill("A", 5)
    assert sequences(query.trigger(), "A") == [8, 9, 10]
    assert query.trigger() == []
    catalog["A"] = Stream("A")
    assert len(query.trigger()) == 4
    assert sequences(query.trigger(), "A") == [15]


def test_a_stream_that_left_the_catalog_while_a_batch_was_to_be_read_again_follows_fail_on_data_loss(
    jet: Jet, catalog: dict[str, Stream]
) -> None:
    jet.make("A", "B")
    jet.fill("A", 3)
    jet.fill("B", 2)
    catalog |= {"A": Stream("A"), "B": Stream("B")}
    query = Query(jet.url, catalog=f"{__name__}:listed")
    query.plan()
    del catalog["A"]
    query.restart()
    with pytest.raises(DataLost, match="stream A left the catalog before sequences 1 to 3 were read"):
        query.read(0)
    query.restart(failOnDataLoss="false")
    assert [(row.stream, row.sequence) for row in query.read(0)] == [("B", 1), ("B", 2)]


def test_a_stream_that_leaves_the_catalog_and_the_server_is_forgotten_without_complaint(
    jet: Jet, catalog: dict[str, Stream]
) -> None:
    jet.make("A", "B")
    jet.fill("A", 10)
    catalog |= {"A": Stream("A"), "B": Stream("B")}
    query = Query(jet.url, catalog=f"{__name__}:listed", maxOffsetsPerTrigger="4")
    query.trigger()
    del catalog["A"]
    jet.delete("A")
    jet.fill("B", 1)
    assert [(row.stream, row.sequence) for row in query.trigger()] == [("B", 1)]
    assert "A" not in json.loads(query.log[-1])


def test_a_stream_that_is_listed_and_gone_with_messages_unread_is_a_loss(jet: Jet, catalog: dict[str, Stream]) -> None:
    jet.make("A")
    jet.fill("A", 10)
    catalog["A"] = Stream("A")
    query = Query(jet.url, catalog=f"{__name__}:listed", maxOffsetsPerTrigger="4")
    query.trigger()
    jet.delete("A")
    with pytest.raises(DataLost, match="stream A was deleted with 6 messages unread"):
        query.trigger()


async def test_one_that_cannot_be_asked_holds_up_nobody_else(
    own_nats: OwnServer, catalog: dict[str, Stream], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A server that is away, credentials that are refused, a stream that is not to be asked about."""
    (tmp_path / "guarded").mkdir()
    guarded = OwnServer(tmp_path / "guarded", "authorization { users = [ { user: a, password: a } ] }")
    await guarded.start()
    with Jet(f"nats://{own_nats.address}") as jet, Jet(f"nats://a:a@{guarded.address}") as other:
        jet.make("GOOD")
        jet.fill("GOOD", 2)
        other.make("FORMER")
        other.fill("FORMER", 2)
        catalog |= {
            "good": Stream("GOOD"),
            "away": Stream("AWAY", access=Access("nats://127.0.0.1:1")),
            "refused": Stream("REFUSED", access=Access(f"nats://a:wrong@{guarded.address}")),
            "former": Stream("FORMER", access=Access(other.url)),
        }
        query = Query(jet.url, catalog=f"{__name__}:listed")
        with caplog.at_level(logging.WARNING):
            rows = query.trigger()
        assert {row.stream for row in rows} == {"GOOD", "FORMER"}
        assert "stream AWAY is not read now: NATS does not answer: cannot connect to 127.0.0.1:1" in caplog.text
        assert "stream REFUSED is not read now" in caplog.text
        del catalog["former"]
        await guarded.stop()
        jet.fill("GOOD", 1)
        assert sequences(query.trigger(), "GOOD") == [3]
        with pytest.raises(StreamsUnavailable, match="stream AWAY cannot be read"):
            Query(jet.url, catalog=f"{__name__}:listed", startingOffsets="latest").trigger()


def test_a_catalog_that_fails_leaves_the_streams_as_they_were(
    jet: Jet, catalog: dict[str, Stream], caplog: pytest.LogCaptureFixture
) -> None:
    jet.make("A")
    catalog["A"] = Stream("A")
    query = Query(jet.url, catalog=f"{__name__}:listed")
    query.trigger()
    catalog["B"] = "nonsense"  # type: ignore[assignment]
    jet.fill("A", 1)
    with caplog.at_level(logging.WARNING):
        assert sequences(query.trigger(), "A") == [1]
    assert "the catalog failed" in caplog.text
    query.restart()
    with pytest.raises(CatalogInvalid):
        query.trigger()


async def test_a_task_waits_for_a_server_that_is_away(own_nats: OwnServer, caplog: pytest.LogCaptureFixture) -> None:
    with Jet(f"nats://{own_nats.address}") as jet:
        jet.make("A")
        jet.fill("A", 3)
        query = Query(jet.url, streams="A")
        query.plan()
    CONNECTIONS.close()
    own_nats.kill()
    reading = asyncio.create_task(asyncio.to_thread(query.read, 0))
    while "Connection refused; trying again for 30 s" not in caplog.text:
        assert not reading.done()
        await asyncio.sleep(0.01)
    await own_nats.start()
    assert sequences(await reading, "A") == [1, 2, 3]


def test_a_catalog_with_more_streams_than_a_page_finds_them_all(jet: Jet, catalog: dict[str, Stream]) -> None:
    names = [f"T_{number:03}" for number in range(300)]
    jet.make(*names)
    jet.fill("T_299", 1)
    jet.fill("T_000", 1)
    catalog |= {name: Stream(name) for name in names}
    query = Query(jet.url, catalog=f"{__name__}:listed")
    assert [row.stream for row in query.trigger()] == ["T_000", "T_299"]
    assert len(query.reader.reportLatestOffset() or ()) == 300


# -- expiry by the server itself -------------------------------------------------------------------------------------


def test_age_takes_messages_from_a_stream_and_the_query_knows(jet: Jet) -> None:
    jet.make("A", max_age=100_000_000)
    query = Query(jet.url, streams="A", startingOffsets="earliest")
    query.trigger()
    jet.fill("A", 3)
    wait_for(lambda: jet.state("A")["messages"] == 0)
    with pytest.raises(DataLost, match="stream A no longer has sequences 1 to 3"):
        query.trigger()
