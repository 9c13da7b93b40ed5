"""`spark.read` and `spark.readStream` with format("nats"), as a user writes them."""

from __future__ import annotations

import json
import shutil
from collections import Counter, defaultdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from tests.spark.jet import Jet


def batch(spark: SparkSession, jet: Jet, **options: str) -> DataFrame:
    return spark.read.format("nats").option("nats.url", jet.url).options(**options).load()


def stream(spark: SparkSession, jet: Jet, **options: str) -> DataFrame:
    return spark.readStream.format("nats").option("nats.url", jet.url).options(**options).load()


def run(frame: DataFrame, folder: Path) -> StreamingQuery:
    """All there is, into a file for each batch, which a batch that is run again replaces."""

    def save(rows: DataFrame, number: int) -> None:
        rows.write.mode("overwrite").parquet(str(folder / "rows" / f"batch={number}"))

    query = (
        frame.writeStream.foreachBatch(save)
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return query


def saved(spark: SparkSession, folder: Path) -> list[tuple[int, str, int]]:
    rows = spark.read.parquet(str(folder / "rows")).select("batch", "stream", "sequence").collect()
    return sorted((row["batch"], row["stream"], row["sequence"]) for row in rows)


def forget_commit(folder: Path, number: int) -> None:
    """As if the driver had died after the rows of a batch were saved, and before Spark wrote down that they are."""
    for file in (folder / "checkpoint" / "commits").glob(f"*{number}*"):
        file.unlink()


def test_a_batch_read_has_all_columns(spark: SparkSession, jet: Jet) -> None:
    jet.make("ORDERS")
    before = datetime.now(UTC).replace(tzinfo=None)
    jet.publish("ORDERS", b"\x00\xff", type="created", headers={"traceparent": "00-1"})
    frame = batch(spark, jet, streams="ORDERS", includeHeaders="true")
    assert frame.schema.simpleString() == (
        "struct<stream:string,subject:string,sequence:bigint,timestamp:timestamp,data:binary,"
        "headers:map<string,array<string>>>"
    )
    row = frame.selectExpr("*", "cast(timestamp as string) as stored", "headers['traceparent'][0] as trace").first()
    assert row is not None
    assert (row["stream"], row["subject"], row["sequence"], row["trace"]) == ("ORDERS", "ORDERS.created", 1, "00-1")
    assert bytes(row["data"]) == b"\x00\xff"
    assert before <= datetime.fromisoformat(row["stored"]) <= datetime.now(UTC).replace(tzinfo=None)


def test_a_batch_read_goes_from_start_to_end(spark: SparkSession, jet: Jet) -> None:
    jet.make("A", "B", "EMPTY")
    jet.fill("A", 10)
    jet.fill("B", 10)
    frame = batch(spark, jet, streams="A,B,EMPTY", startingOffsets='{"A": 3}', endingOffsets='{"A": 6, "B": 2}')
    rows = frame.select("stream", "sequence").collect()
    assert sorted(map(tuple, rows)) == [("A", 3), ("A", 4), ("A", 5), ("B", 1)]
    assert batch(spark, jet, streams="EMPTY").count() == 0


def test_sql_works_on_it(spark: SparkSession, jet: Jet) -> None:
    jet.make("A")
    jet.publish("A", b'{"total": 3}', b'{"total": 4}')
    batch(spark, jet, streams="A").createOrReplaceTempView("orders")
    row = spark.sql("select sum(get_json_object(cast(data as string), '$.total')) as total from orders").first()
    assert row is not None
    assert row["total"] == 7


def test_a_streaming_query_goes_on_from_its_checkpoint(spark: SparkSession, jet: Jet, tmp_path: Path) -> None:
    jet.make("A", "B")
    jet.fill("A", 7)
    run(stream(spark, jet, streams="*", maxOffsetsPerTrigger="5"), tmp_path)
    jet.fill("A", 2)
    jet.fill("B", 1)
    jet.make("NEW")
    jet.fill("NEW", 1)
    run(stream(spark, jet, streams="*", maxOffsetsPerTrigger="5"), tmp_path)
    assert saved(spark, tmp_path) == [
        *((0, "A", number) for number in range(1, 6)),
        (1, "A", 6),
        (1, "A", 7),
        (2, "A", 8),
        (2, "A", 9),
        (2, "B", 1),
        (2, "NEW", 1),
    ]


def test_a_batch_that_is_run_again_has_the_same_rows(spark: SparkSession, jet: Jet, tmp_path: Path) -> None:
    jet.make("A", "B")
    jet.fill("A", 100)
    jet.fill("B", 100)
    run(stream(spark, jet, streams="*", maxOffsetsPerTrigger="120"), tmp_path)
    before = saved(spark, tmp_path)
    shutil.rmtree(tmp_path / "rows" / "batch=1")
    forget_commit(tmp_path, 1)
    jet.fill("A", 30)
    jet.purge("B", keep=50)
    run(stream(spark, jet, streams="*", maxOffsetsPerTrigger="25"), tmp_path)
    after = saved(spark, tmp_path)
    assert [row for row in after if row[0] <= 1] == before
    assert sorted(row[1:] for row in after) == sorted(
        [("A", number) for number in range(1, 131)] + [("B", number) for number in range(1, 101)]
    )


def test_with_500_000_messages_in_one_stream_the_990_of_the_others_are_in_the_first_batch(
    spark: SparkSession, jet: Jet, tmp_path: Path
) -> None:
    jet.make("FLOOD", *(f"SMALL_{number}" for number in range(99)), storage="memory")
    jet.publish("FLOOD", *([b"x"] * 500_000))
    for number in range(99):
        jet.fill(f"SMALL_{number}", 10)
    counts: list[dict[str, int]] = []

    def count(rows: DataFrame, number: int) -> None:
        if not counts:
            counts.append({row["stream"]: row["count"] for row in rows.groupBy("stream").count().collect()})

    query = (
        stream(spark, jet, streams="*", maxOffsetsPerTrigger="5000")
        .writeStream.foreachBatch(count)
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .start()
    )
    try:
        while not counts:
            query.awaitTermination(1)
    finally:
        query.stop()
    assert {name: amount for name, amount in counts[0].items() if name != "FLOOD"} == {
        f"SMALL_{number}": 10 for number in range(99)
    }
    assert counts[0]["FLOOD"] == 5000 - 990


def test_a_batch_has_no_more_bytes_than_it_may(spark: SparkSession, jet: Jet, tmp_path: Path) -> None:
    jet.make("LARGE", "SMALL")
    jet.publish("LARGE", *([b"x" * 100_000] * 6))
    jet.fill("SMALL", 20)
    run(stream(spark, jet, streams="*", maxBytesPerTrigger="250000"), tmp_path)
    batches: dict[int, Counter[str]] = defaultdict(Counter)
    for number, name, _ in saved(spark, tmp_path):
        batches[number][name] += 1
    assert batches == {0: {"LARGE": 2, "SMALL": 20}, 1: {"LARGE": 2}, 2: {"LARGE": 2}}


def test_a_message_that_is_larger_than_a_batch_may_be_is_read_by_itself(
    spark: SparkSession, jet: Jet, tmp_path: Path
) -> None:
    jet.make("LARGE")
    jet.publish("LARGE", *([b"x" * 1000] * 3))
    run(stream(spark, jet, streams="*", maxBytesPerTrigger="10"), tmp_path)
    assert saved(spark, tmp_path) == [(0, "LARGE", 1), (1, "LARGE", 2), (2, "LARGE", 3)]


def test_progress_shows_how_far_the_streams_reach(spark: SparkSession, jet: Jet, tmp_path: Path) -> None:
    jet.make("A")
    jet.fill("A", 12)
    query = run(stream(spark, jet, streams="A", maxOffsetsPerTrigger="5"), tmp_path)
    sources = [progress["sources"][0] for progress in query.recentProgress if progress["numInputRows"]]
    assert [offset(source["endOffset"])["A"] for source in sources] == [6, 11, 13]
    assert all(offset(source["latestOffset"]) == {"A": 13} for source in sources)


def offset(value: Any) -> dict[str, Any]:
    return json.loads(value) if isinstance(value, str) else dict(value)


def test_a_thousand_streams_make_no_more_tasks_than_ten(spark: SparkSession, jet: Jet) -> None:
    jet.make(*(f"T_{number}" for number in range(1000)), storage="memory")
    for number in range(1000):
        jet.publish(f"T_{number}", b"x" * 2000)
    frame = batch(spark, jet, streams="T_*")
    assert frame.rdd.getNumPartitions() <= 8
    assert batch(spark, jet, streams="T_*", minPartitions="3").rdd.getNumPartitions() == 3
    assert frame.select("stream").distinct().count() == 1000


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (
            {"streams": "A", "startingOffset": "earliest"},
            "there is no option startingoffset (did you mean startingOffsets?);",
        ),
        ({"streams": "NOWHERE"}, "there is no stream NOWHERE"),
        ({}, "expected either the option streams"),
        ({"streams": "A", "failOnDataLoss": "no"}, "expected failOnDataLoss to be true or false, got: no"),
    ],
)
def test_what_is_wrong_is_told(spark: SparkSession, jet: Jet, options: dict[str, str], complaint: str) -> None:
    jet.make("A")
    with pytest.raises(PySparkException) as caught:
        batch(spark, jet, **options).count()
    assert complaint in str(caught.value)


def test_another_schema_is_refused(spark: SparkSession, jet: Jet) -> None:
    jet.make("A")
    with pytest.raises(PySparkException) as caught:
        spark.read.format("nats").schema("a int").options(**{"nats.url": jet.url, "streams": "A"}).load().count()
    assert "expected the schema to be struct<stream:string," in str(caught.value)


def test_a_loss_fails_the_query_and_names_the_gap(spark: SparkSession, jet: Jet, tmp_path: Path) -> None:
    jet.make("A")
    jet.fill("A", 10)
    run(stream(spark, jet, streams="A"), tmp_path)
    jet.fill("A", 10)
    jet.purge("A", keep=5)
    with pytest.raises(PySparkException) as caught:
        run(stream(spark, jet, streams="A"), tmp_path)
    assert "stream A no longer has sequences 11 to 15" in str(caught.value)
    run(stream(spark, jet, streams="A", failOnDataLoss="false"), tmp_path)
    assert [row[2] for row in saved(spark, tmp_path)] == [*range(1, 11), *range(16, 21)]
