"""A query on a cluster while everything happens at once: executors and the driver are killed, streams change."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests.spark.cluster import Application, Cluster
from tests.spark.jet import Jet

pytestmark = pytest.mark.xdist_group("spark-cluster")

# A batch that is run again replaces what it had saved.
FOLLOW = """
import sys
from pathlib import Path
from pyspark.sql import SparkSession
from pyspark.sql.functions import col, monotonically_increasing_id

_, url, folder, limit = sys.argv[1:]
spark = SparkSession.builder.getOrCreate()

def save(rows, number):
    rows = rows.select("stream", "sequence", col("data").cast("string").alias("data"))
    placed = rows.withColumn("place", monotonically_increasing_id())
    placed.write.mode("overwrite").parquet(f"{folder}/rows/batch={number}")

def follow(limit, **trigger):
    options = {"nats.url": url, "streams": "S*", "failOnDataLoss": "false", "minPartitions": 3}
    events = spark.readStream.format("nats").options(**options, maxOffsetsPerTrigger=limit).load()
    query = events.writeStream.foreachBatch(save).option("checkpointLocation", folder + "/checkpoint")
    return (query.trigger(**trigger) if trigger else query).start()

query = follow(limit)
while not Path(folder, "calm").exists():
    query.awaitTermination(0.2)
query.stop()
follow(2000, availableNow=True).awaitTermination()
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
        kills = ["executor", "driver"]
        self._chance.shuffle(kills)
        self._change()
        application = self._start()
        try:
            for kill in kills:
                self._go_on(application)
                if kill == "driver":
                    application.kill()
                    application = self._start()
                else:
                    self._chance.choice(self._cluster.executors()).kill()
                self._change()
            self._go_on(application)
            (self._folder / "calm").touch()
            assert application.wait() == 0, application.log
        finally:
            application.kill()

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
        self._starts += 1
        limit = str(self._chance.choice([40, 150, 1000]))
        return self._cluster.submit(
            *(self._folder / f"run-{self._starts}", FOLLOW, self._jet.url, self._folder, limit),
            settings={"spark.task.maxFailures": "20"},
        )

    def _go_on(self, application: Application) -> None:
        """For two batches, with something new to read after each."""
        until, seen = self._batches() + 2, -1

        def reached() -> bool:
            nonlocal seen
            if seen < self._batches():
                seen = self._batches()
                self._publish(f"S{self._chance.randrange(3)}", self._chance.randrange(1, 200))
            return seen >= until

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
