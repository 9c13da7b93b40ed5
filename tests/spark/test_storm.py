"""A query on a cluster while everything happens at once: executors and the driver are killed, streams change."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests.spark.cluster import Application, Cluster
from tests.spark.jet import Jet

pytestmark = pytest.mark.xdist_group("spark-cluster")

# A batch that is run again replaces what it had saved.
FOLLOW = """
import sys
from pyspark.sql import SparkSession
from pyspark.sql.functions import col, monotonically_increasing_id

_, url, folder, limit, drain = sys.argv[1:]
spark = SparkSession.builder.getOrCreate()

def save(rows, number):
    rows = rows.select("stream", "sequence", col("data").cast("string").alias("data"))
    placed = rows.withColumn("place", monotonically_increasing_id())
    placed.write.mode("overwrite").parquet(f"{folder}/rows/batch={number}")

events = (
    spark.readStream.format("nats").option("nats.url", url).option("streams", "S*").option("failOnDataLoss", "false")
    .option("maxOffsetsPerTrigger", limit).option("minPartitions", 3).load()
)
query = events.writeStream.foreachBatch(save).option("checkpointLocation", folder + "/checkpoint")
query = query.trigger(availableNow=True) if drain == "drain" else query
query.start().awaitTermination()
spark.stop()
"""


def test_each_message_is_there_once_and_in_order_after_a_storm(cluster: Cluster, jet: Jet, tmp_path: Path) -> None:
    seed = random.randrange(1 << 32)
    print("the storm of seed", seed)
    storm = Storm(cluster, jet, tmp_path, random.Random(seed))
    storm.run()
    storm.check()


class Storm:
    def __init__(self, cluster: Cluster, jet: Jet, folder: Path, chance: random.Random) -> None:
        self._cluster = cluster
        self._jet = jet
        self._folder = folder
        self._chance = chance
        self._starts = 0
        self._published: dict[str, tuple[str, int]] = {}
        """What was published, and where."""
        self._removed: set[str] = set()
        """What may be missing, because it was purged or had time to expire."""
        jet.make("S0", "S1", "S2")
        jet.make("S_BRIEF", max_age=1_000_000_000, duplicate_window=1_000_000_000)

    def run(self) -> None:
        kills = ["executor", "driver", "executor"]
        self._chance.shuffle(kills)
        self._change()
        application = self._start()
        try:
            for kill in kills:
                saved = self._batches()
                self._until(application, lambda saved=saved: self._batches() > saved + 1)  # type: ignore[misc]
                if kill == "driver":
                    application.kill()
                    application = self._start()
                else:
                    self._chance.choice(self._cluster.executors()).kill()
                self._change()
        finally:
            application.kill()
        with self._submit("drain") as draining:
            assert draining.wait() == 0, draining.log

    def check(self) -> None:
        read = [row for number in range(self._batches()) for row in self._rows(number)]
        times = Counter(data for _, _, data in read)
        assert not [data for data, amount in times.items() if amount > 1], "something was read twice"
        assert {data: (stream, sequence) for stream, sequence, data in read}.items() <= self._published.items()
        assert set(self._published) - self._removed <= set(times), "something was not read"
        by_stream = defaultdict(list)
        for stream, sequence, _ in read:
            by_stream[stream].append(sequence)
        assert all(sequences == sorted(sequences) for sequences in by_stream.values()), "something was out of order"
        assert len(by_stream) >= 4

    # -- the query --------------------------------------------------------------------------------------------------

    def _start(self) -> Application:
        return self._submit("follow")

    def _submit(self, how: str) -> Application:
        self._starts += 1
        limit = str(self._chance.choice([40, 150, 1000]) if how == "follow" else 2000)
        return self._cluster.submit(
            *(self._folder / f"run-{self._starts}", FOLLOW, self._jet.url, self._folder, limit, how),
            settings={"spark.task.maxFailures": "20", "spark.sql.streaming.stopTimeout": "10s"},
        )

    def _until(self, application: Application, condition: Callable[[], bool]) -> None:
        """With something new to read after each batch."""
        saved = -1

        def reached() -> bool:
            nonlocal saved
            if saved < self._batches():
                saved = self._batches()
                self._publish(f"S{self._chance.randrange(3)}", self._chance.randrange(1, 200))
            return condition()

        application.until(reached)

    def _batches(self) -> int:
        """How many have been saved whole."""
        return len(list(self._folder.glob("rows/batch=*/_SUCCESS")))

    def _rows(self, number: int) -> list[tuple[str, int, str]]:
        """In the order that Spark had them in."""
        rows = [row for file in self._folder.glob(f"rows/batch={number}/*.parquet") for row in _read(file)]
        return [row[1:] for row in sorted(rows)]

    # -- the streams ------------------------------------------------------------------------------------------------

    def _change(self) -> None:
        for name in ("S0", "S1", "S2", "S_BRIEF"):
            self._publish(name, self._chance.randrange(50, 400))
        self._removed |= {data for data, (stream, _) in self._published.items() if stream == "S_BRIEF"}
        victim = f"S{self._chance.randrange(3)}"
        kept = self._chance.randrange(1, 60)
        there = sorted((sequence, data) for data, (stream, sequence) in self._published.items() if stream == victim)
        self._jet.purge(victim, keep=kept)
        self._removed |= {data for _, data in there[:-kept]}
        newcomer = f"S_NEW_{self._starts}_{len(self._published)}"
        self._jet.make(newcomer)
        self._publish(newcomer, self._chance.randrange(1, 100))

    def _publish(self, stream: str, amount: int) -> None:
        first = self._jet.state(stream)["last_seq"] + 1
        data = [f"{stream}/{sequence}" for sequence in range(first, first + amount)]
        self._jet.publish(stream, *(each.encode() for each in data))
        self._published |= {each: (stream, sequence) for sequence, each in enumerate(data, first)}


def _read(file: Path) -> list[tuple[int, str, int, str]]:
    columns = pq.ParquetFile(file).read().to_pydict()
    return list(zip(columns["place"], columns["stream"], columns["sequence"], columns["data"], strict=True))
