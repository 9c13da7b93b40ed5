"""DataFrames into streams: every row once, whatever is repeated."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Iterator
from datetime import date
from decimal import Decimal
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark.sql.functions import count
from pyspark.sql.types import IntegerType, MapType, StringType, StructType

import nats_bulk
from pyspark_nats.errors import OptionInvalid
from pyspark_nats.message_ids import MessageIds
from pyspark_nats.messages import Messages
from pyspark_nats.options import WriteOptions
from pyspark_nats.source import NatsDataSource
from pyspark_nats.writer import Delivery, NatsWriter
from tests.own_server import OwnServer
from tests.spark.jet import Jet

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

EVENT = "subject string, data string"


def columns_of(columns: str) -> StructType:
    """What Spark would make of this, which needs a JVM for it."""
    schema = StructType()
    for column in columns.split(", "):
        name, kind = column.split(" ")
        schema.add(name, MapType(StringType(), IntegerType()) if kind == "map<string,int>" else kind)
    return schema


def save(frame: DataFrame, jet: Jet, **options: str) -> None:
    frame.write.format("nats").option("nats.url", jet.url).options(**options).mode("append").save()


def read_stream(spark: SparkSession, jet: Jet, stream: str, **options: str) -> DataFrame:
    return spark.readStream.format("nats").option("nats.url", jet.url).options(streams=stream, **options).load()


def sink(frame: DataFrame, jet: Jet, checkpoint: Path, **options: str) -> DataStreamWriter:
    writer = frame.writeStream.format("nats").option("nats.url", jet.url).options(**options)
    return writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True)


def run(writer: DataStreamWriter) -> None:
    assert writer.start().awaitTermination(60)


def repeat_last_batch(checkpoint: Path) -> None:
    """The driver died after the batch was written and before it was noted."""
    last = max(
        (path for path in (checkpoint / "commits").iterdir() if path.name.isdigit()), key=lambda at: int(at.name)
    )
    last.unlink()
    last.with_name(f".{last.name}.crc").unlink(missing_ok=True)


def headers(jet: Jet, stream: str) -> list[dict[str, list[str]]]:
    last = jet.state(stream)["last_seq"]
    batches = nats_bulk.read_range(jet.connection, stream, 1, last)
    return [nats_bulk.parse_headers(block) for batch in batches for block in batch.headers]


# -- batches ----------------------------------------------------------------------------------------------------------


def test_every_row_of_a_frame_is_stored_also_those_that_are_the_same(spark: SparkSession, jet: Jet) -> None:
    jet.make("A")
    rows = spark.range(30_000).selectExpr("concat('A.', id % 3) AS subject", "CAST(id % 10000 AS string) AS data")
    save(rows, jet)
    stored = [(subject, payload) for _, subject, payload in jet.content("A")]
    assert sorted(stored) == sorted((f"A.{id % 3}", b"%d" % (id % 10_000)) for id in range(30_000))
    save(spark.createDataFrame([("A.1", None)], EVENT), jet)
    assert jet.content("A")[-1] == (30_001, "A.1", b"")


def test_a_batch_that_is_run_again_adds_nothing_under_its_write_id(spark: SparkSession, jet: Jet) -> None:
    jet.make("A")
    rows = spark.createDataFrame([("A.x", "same"), ("A.x", "same"), ("A.x", "other")], EVENT).coalesce(1)
    save(rows, jet, writeId="import 2026-11-15")
    save(rows, jet, writeId="import 2026-11-15")
    assert [payload for _, _, payload in jet.content("A")] == [b"same", b"same", b"other"]
    save(rows, jet)
    save(rows, jet)
    assert jet.state("A")["messages"] == 9


def test_an_id_column_is_the_message_id(spark: SparkSession, jet: Jet) -> None:
    jet.make("A")
    rows = spark.createDataFrame([("A.x", "1", "one"), ("A.x", "2", "two"), ("A.y", "3", "one")], f"{EVENT}, id string")
    save(rows.coalesce(1), jet)
    assert [payload for _, _, payload in jet.content("A")] == [b"1", b"2"]
    assert headers(jet, "A") == [{"Nats-Msg-Id": ["one"]}, {"Nats-Msg-Id": ["two"]}]


def test_headers_that_were_read_are_written_without_those_of_the_server(spark: SparkSession, jet: Jet) -> None:
    jet.make("A", "B", allow_msg_ttl=True)
    given = {"Trace": ["1", "2"], "Nats-TTL": "1h", "Nats-Expected-Stream": "A"}
    message = nats_bulk.Message("A.x", b"1", "old", given)
    nats_bulk.publish(jet.connection, [message]).raise_for_errors()
    read = spark.read.format("nats").options(**{"nats.url": jet.url, "streams": "A", "includeHeaders": "true"}).load()
    save(read.select("data", "headers"), jet, subject="B.copy", writeId="w")
    ((_, subject, payload),) = jet.content("B")
    (written,) = headers(jet, "B")
    assert (subject, payload) == ("B.copy", b"1")
    assert written.pop("Nats-Msg-Id")[0].startswith("w.0.")
    assert written == {"Trace": ["1", "2"], "Nats-TTL": ["1h"]}

    single = spark.createDataFrame([("B.x", "2", {"a": "ä", "b": None})], f"{EVENT}, headers map<string,string>")
    save(single, jet)
    assert headers(jet, "B")[1].keys() == {"Nats-Msg-Id", "a"}
    assert headers(jet, "B")[1]["a"] == ["ä"]


# -- streams ----------------------------------------------------------------------------------------------------------


def test_a_stream_goes_on_into_another_by_a_template(spark: SparkSession, jet: Jet, tmp_path: Path) -> None:
    jet.make("A", "B")
    jet.fill("A", 5)
    read = read_stream(spark, jet, "A").selectExpr("data", "stream AS origin", "sequence", "sequence > 2 AS late")
    writer = sink(read, jet, tmp_path / "checkpoint", subject="B.{origin}.{sequence}.{late}")
    run(writer)
    jet.fill("A", 1)
    run(writer)
    assert jet.content("B") == [
        (1, "B.A.1.false", b"1"),
        (2, "B.A.2.false", b"2"),
        (3, "B.A.3.true", b"3"),
        (4, "B.A.4.true", b"4"),
        (5, "B.A.5.true", b"5"),
        (6, "B.A.6.true", b"1"),
    ]


def test_a_batch_that_is_repeated_adds_nothing(spark: SparkSession, jet: Jet, tmp_path: Path) -> None:
    jet.make("A", "B")
    jet.publish("A", b"1", b"2", b"2", b"3")
    writer = sink(read_stream(spark, jet, "A").select("data"), jet, tmp_path, subject="B.x")
    run(writer)
    assert [payload for _, _, payload in jet.content("B")] == [b"1", b"2", b"2", b"3"]
    repeat_last_batch(tmp_path)
    run(writer)
    assert jet.state("B")["last_seq"] == 4
    # The same in a new batch is something new.
    jet.publish("A", b"1")
    run(writer)
    assert [payload for _, _, payload in jet.content("B")][4:] == [b"1"]


def test_rows_that_come_in_another_order_the_second_time_are_not_taken_for_each_other(
    spark: SparkSession, jet: Jet, tmp_path: Path
) -> None:
    large = b"x" * 300
    jet.make("A")
    jet.make("B", max_msg_size=200)
    jet.publish("A", b"1", large, b"2", b"2")
    turned = tmp_path / "turned"

    def turn(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield batch.take(list(reversed(range(batch.num_rows)))) if turned.exists() else batch

    read = read_stream(spark, jet, "A").select("data").mapInArrow(turn, "data binary")
    writer = sink(read, jet, tmp_path / "checkpoint", subject="B.x")
    with pytest.raises(Exception, match="1 of 4 rows of a batch were not stored"):
        run(writer)
    assert [payload for _, _, payload in jet.content("B")] == [b"1", b"2", b"2"]
    jet.ask("STREAM.UPDATE.B", {"name": "B", "subjects": ["B.>"], "allow_direct": True})
    turned.touch()
    run(writer)
    assert [payload for _, _, payload in jet.content("B")] == [b"1", b"2", b"2", large]


def test_a_batch_that_died_half_way_is_completed(spark: SparkSession, jet: Jet, tmp_path: Path) -> None:
    jet.make("A1", "A2", "B")
    jet.fill("A1", 50)
    jet.fill("A2", 50)
    url, died = jet.url, tmp_path / "died"

    def die_once(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import os
        import signal

        from tests.processes import wait_for

        for batch in batches:
            if batch.column("stream")[0].as_py() == "A2" and not died.exists():
                with Jet(url) as seen:
                    wait_for(lambda: seen.state("B")["messages"] == 50)
                died.touch()
                os.kill(os.getpid(), signal.SIGKILL)
            yield batch

    read = read_stream(spark, jet, "A*", minPartitions="2").select("stream", "data")
    writer = sink(read.mapInArrow(die_once, "stream string, data binary"), jet, tmp_path, subject="B.{stream}")
    with pytest.raises(Exception, match="Python worker exited unexpectedly"):
        run(writer)
    assert jet.state("B")["messages"] == 50
    run(writer)
    stored = [(subject, payload) for _, subject, payload in jet.content("B")]
    assert stored == [(f"B.{stream}", b"%d" % number) for stream in ("A1", "A2") for number in range(1, 51)]


def test_a_write_id_replaces_the_query_id(spark: SparkSession, jet: Jet, tmp_path: Path) -> None:
    jet.make("A", "B")
    jet.fill("A", 3)
    read = read_stream(spark, jet, "A").select("data")
    for checkpoint in ("one", "two"):
        run(sink(read, jet, tmp_path / checkpoint, subject="B.x", writeId="mine"))
    assert jet.state("B")["last_seq"] == 3
    run(sink(read, jet, tmp_path / "three", subject="B.x"))
    assert jet.state("B")["last_seq"] == 6


# -- what is refused --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rows", "columns", "message"),
    [
        ([("A.x", "1"), (None, "2")], EVENT, r"expected column subject to have a value in every row, got null in 1 of"),
        ([("A.x", "1", None)], f"{EVENT}, id string", "expected column id to have a value in every row, got null in 1"),
        ([("A..x", "1")], EVENT, r"1 of 1 rows of a batch were not stored; one of them, to 'A..x': expected a subject"),
        ([("A.x", "1", " ")], f"{EVENT}, id string", "to 'A.x': expected an id of printable characters"),
        ([("A.x", "1" * 101)], EVENT, "to 'A.x': message size exceeds maximum"),
        ([("nowhere", "1")], EVENT, "to 'nowhere': no stream takes the subject nowhere now"),
        (
            [("A.x", "1", {"a": "b\r\nc"})],
            f"{EVENT}, headers map<string,string>",
            "to 'A.x': expected a header of visible ASCII and one line",
        ),
    ],
)
def test_a_row_that_cannot_be_stored_fails_the_write(
    spark: SparkSession, jet: Jet, rows: list[Any], columns: str, message: str
) -> None:
    jet.make("A", max_msg_size=100)
    with pytest.raises(Exception, match=message):
        save(spark.createDataFrame(rows, columns).coalesce(1), jet)
    assert jet.state("A")["messages"] == 0


def test_a_stream_cannot_be_overwritten(spark: SparkSession, jet: Jet, tmp_path: Path) -> None:
    rows = spark.createDataFrame([("A.x", "1")], EVENT)
    with pytest.raises(Exception, match="a stream cannot be overwritten"):
        rows.write.format("nats").option("nats.url", jet.url).mode("overwrite").save()
    jet.make("A")
    counts = read_stream(spark, jet, "A").groupBy("subject").agg(count("*").cast("string").alias("data"))
    with pytest.raises(Exception, match="a stream cannot be overwritten"):
        run(sink(counts, jet, tmp_path / "checkpoint").outputMode("complete"))


@pytest.mark.parametrize(
    ("columns", "options", "message"),
    [
        ("subject string", {}, "expected a column data, the payload, got: subject"),
        ("data string", {}, r"expected a column subject, or the option subject, such as .*, got: data$"),
        ("data integer", {"subject": "a"}, "expected column data to be binary or string, got: int; cast it"),
        ("data string, id integer", {"subject": "a"}, "expected column id to be string, got: int; cast it"),
        ("data string, headers string", {"subject": "a"}, "expected column headers to be map<string,string> or "),
        ("data string, headers map<string,int>", {"subject": "a"}, "expected column headers to be .*map<string,int>"),
        ("data string, x string", {"subject": "a"}, "got also: x; select what is to be written"),
        ("data string, data string", {"subject": "a"}, "each at most once.* got also: data, data"),
        (
            "data string",
            {"subject": "a.{x}"},
            "expected the option subject to name columns, got: x; the columns are data",
        ),
        ("data string, x timestamp", {"subject": "a.{x}"}, "expected column x to be a string, .* got: timestamp; cast"),
        ("data string", {"subject": "a.{x"}, "expected subject to be like .*, got: 'a.{x'; braces go around the name"),
        ("data string", {"subject": "a.{}"}, "braces go around the name of a column"),
        ("data string", {"subject": "a..b"}, "expected subject to be like .*, got: 'a..b'; expected a subject of tok"),
        ("data string", {"subject": "a.>"}, "expected a subject of tokens without"),
        ("data string", {"subject": "a", "writeId": "a\nb"}, "expected writeId to be of printable characters, got"),
        (
            "data string",
            {"subject": "a", "stream": "A"},
            r"there is no option stream \(did you mean subject\?\); the options are:\n  nats.url",
        ),
        ("data string", {"subject": "a", "nats.url": ""}, "expected the option nats.url"),
        ("data string", {"subject": "a", "nats.creds": "/nowhere"}, "cannot read the credentials file /nowhere"),
    ],
)
def test_what_cannot_be_written_is_refused_before_the_first_row(
    columns: str, options: dict[str, str], message: str
) -> None:
    source = NatsDataSource({"nats.url": "nats://127.0.0.1:1"} | options)
    schema = columns_of(columns)
    for make in (source.writer, source.streamWriter):
        with pytest.raises(OptionInvalid, match=message):
            make(schema, overwrite=False)


def test_credentials_go_to_the_tasks_and_are_not_shown(tmp_path: Path) -> None:
    creds = tmp_path / "user.creds"
    creds.write_text(
        "-----BEGIN NATS USER JWT-----\nTHEJWT\n------END NATS USER JWT------\n"
        "-----BEGIN USER NKEY SEED-----\nTHESEED\n------END USER NKEY SEED------\n"
    )
    options = {"nats.url": "nats://me:secret@host", "nats.creds": str(creds), "subject": "a"}
    writer = NatsDataSource(options).writer(columns_of("data string"), overwrite=False)
    creds.unlink()
    assert b"THESEED" in pickle.dumps(writer)
    assert isinstance(writer, NatsWriter)
    shown = f"{writer!r} {vars(writer)} {vars(writer._delivery)}"
    assert not any(secret in shown for secret in ("THEJWT", "THESEED", "secret"))


async def test_a_server_that_is_away_for_a_moment_is_waited_for(jet: Jet, own_nats: OwnServer) -> None:
    jet.make("A", storage="file")
    options = WriteOptions.parse({"nats.url": jet.url, "subject": "A.x"})
    delivery = Delivery(columns_of("data binary"), options, overwrite=False)
    batches = [pa.RecordBatch.from_pylist([{"data": b"%d" % number}]) for number in range(3)]
    own_nats.kill()
    asked = Event()

    def hand_out() -> Iterator[pa.RecordBatch]:
        asked.set()
        yield from batches

    writing = asyncio.create_task(asyncio.to_thread(delivery.deliver, hand_out(), "w"))
    await asyncio.to_thread(asked.wait)
    await own_nats.start()
    await writing
    jet.connection.reconnect()
    assert [payload for _, _, payload in jet.content("A")] == [b"0", b"1", b"2"]


# -- messages ---------------------------------------------------------------------------------------------------------


def test_ids_do_not_depend_on_the_order_of_rows_or_headers() -> None:
    rows: list[tuple[str, dict[str, list[str]] | None, bytes]] = [
        ("a", None, b"1"),
        ("a", None, b"1"),
        ("a", {"x": ["1"], "y": ["2"]}, b"1"),
        ("a", {"x": ["1", "2"]}, b"1"),
        ("a", {"x": ["1"]}, b"2"),
        ("b", None, b"1"),
    ]
    ids, turned = MessageIds("w.0"), MessageIds("w.0")
    made = [ids.of(*row) for row in rows]
    assert len(set(made)) == len(rows)
    again = [
        turned.of(subject, dict(reversed(headers.items())) if headers else None, payload)
        for subject, headers, payload in reversed(rows)
    ]
    assert set(again) == set(made)
    assert MessageIds("w.1").of(*rows[0]) not in made


def test_a_template_takes_columns_of_any_kind_that_makes_a_token() -> None:
    columns = {"data": pa.binary(), "subject": pa.large_string(), "n": pa.decimal128(4, 2), "day": pa.date32()}
    row = {"data": b"1", "subject": "old.one", "n": Decimal("1.50"), "day": date(2026, 11, 15)}
    batch = pa.RecordBatch.from_pylist([row] * 2, schema=pa.schema(columns))
    messages = Messages(columns_of("data binary, subject string, n decimal(4,2), day date"), "{day}.{subject}-{n}")
    assert [message.subject for message in messages.of(batch, MessageIds("w"))] == ["2026-11-15.old.one-1.50"] * 2


def test_the_option_subject_wins_over_the_column() -> None:
    batch = pa.RecordBatch.from_pylist([{"data": b"1", "subject": "old"}])
    (message,) = Messages(columns_of("data binary, subject string"), "new").of(batch, MessageIds("w"))
    assert message.subject == "new"
