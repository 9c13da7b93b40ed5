"""The connector on a standalone cluster: tasks on each executor, executors that die, executors without the package."""

from __future__ import annotations

import json
import zipfile
from collections import defaultdict
from pathlib import Path

import pytest

from nats_bulk import Connection
from tenantry.nats import claims
from tenantry.nats.connections import Broker
from tests.spark.cluster import Cluster, python_without_the_package
from tests.spark.jet import Jet

pytestmark = pytest.mark.xdist_group("spark-cluster")

SOURCES = Path(__file__).parents[2] / "src"
STREAMS = [f"S{number}" for number in range(6)]

# An executor's Python runs in the folder that the worker made for that executor.
READ_IN_BATCHES = """
import json, os, sys
import pyarrow
from pyspark.sql import SparkSession

result, checkpoint, options = sys.argv[1:]
spark = SparkSession.builder.getOrCreate()

def say_where(batches):
    import pyspark_nats
    for batch in batches:
        batch = batch.append_column("place", pyarrow.array([os.getcwd()] * len(batch)))
        yield batch.append_column("origin", pyarrow.array([pyspark_nats.__file__] * len(batch)))

batches = []

def keep(frame, number):
    batches.append([list(row) for row in frame.collect()])

events = spark.readStream.format("nats").options(**json.loads(options)).load()
numbered = events.select("stream", "sequence", events.data.cast("string").cast("int").alias("number"))
placed = numbered.mapInArrow(say_where, "stream string, sequence long, number int, place string, origin string")
query = placed.writeStream.foreachBatch(keep).option("checkpointLocation", checkpoint)
query.trigger(availableNow=True).start().awaitTermination()
with open(result, "w") as file:
    json.dump(batches, file)
spark.stop()
"""

# Each task says when it has handed on its first rows, and then waits until it may go on.
READ_AND_WAIT = """
import json, os, sys, time
from pathlib import Path
import pyarrow
from pyspark import TaskContext
from pyspark.sql import SparkSession

result, url, marks, output = sys.argv[1:]
spark = SparkSession.builder.getOrCreate()

def wait_in_the_middle(batches):
    task = TaskContext.get()
    go = Path(marks, "go")
    for number, batch in enumerate(batches):
        if number == 1 and not go.exists():
            Path(marks, f"{task.partitionId()}.{task.attemptNumber()}").symlink_to(os.getcwd())
            while not go.exists():
                time.sleep(0.02)
        yield batch.append_column("attempt", pyarrow.array([task.attemptNumber()] * len(batch), pyarrow.int32()))

events = (
    spark.readStream.format("nats").option("nats.url", url).option("streams", "S*")
    .option("maxOffsetsPerTrigger", 1200).option("minPartitions", 2).load()
)
sequences = events.select("stream", "sequence")
waiting = sequences.mapInArrow(wait_in_the_middle, "stream string, sequence long, attempt int")
query = waiting.writeStream.format("parquet").option("checkpointLocation", output + ".checkpoint")
query.option("path", output).trigger(availableNow=True).start().awaitTermination()
rows = spark.read.parquet(output).collect()
with open(result, "w") as file:
    json.dump([list(row) for row in rows], file)
spark.stop()
"""


def test_each_message_is_read_once_and_in_order_by_executors_that_got_the_package_and_credentials_from_the_driver(
    cluster: Cluster, account: Broker, tmp_path: Path
) -> None:
    with AccountJet(account) as jet:
        fill(jet, 400)
    (tmp_path / "user.creds").write_text(claims.format_credentials(account.credentials))
    # Seen from where the driver runs. An executor runs elsewhere, and would not find it.
    access = {"nats.url": account.url, "nats.creds": "../user.creds"}
    options = access | {"streams": "S*", "maxOffsetsPerTrigger": "900", "minPartitions": "4"}
    python = str(python_without_the_package(tmp_path / "python"))
    package = zip_of_the_package(tmp_path / "pyspark_nats.zip")
    run = cluster.submit(
        *(tmp_path / "run", READ_IN_BATCHES, tmp_path / "checkpoint", json.dumps(options)),
        py_files=package,
        # What Spark runs on the driver for a streaming query does not look into --py-files.
        variables={"PYSPARK_PYTHON": python, "PYSPARK_DRIVER_PYTHON": python, "PYTHONPATH": str(package)},
    )
    with run as application:
        batches: list[list[tuple[str, int, int, str, str]]] = application.result()
    read = defaultdict(list)
    for stream, sequence, number, *_ in (row for batch in batches for row in batch):
        read[stream].append((sequence, number))
    assert read == {stream: [(number, number) for number in range(1, 401)] for stream in STREAMS}
    assert [len(batch) for batch in batches] == [900, 900, 600]
    assert all(len({place for *_, place, _ in batch}) == 2 for batch in batches)
    origins = {origin for batch in batches for *_, origin in batch}
    assert origins == {"./pyspark_nats.zip/pyspark_nats/__init__.py"}


def test_a_query_whose_executor_is_killed_goes_on_and_has_each_row_once(
    cluster: Cluster, jet: Jet, tmp_path: Path
) -> None:
    fill(jet, 400)
    marks = tmp_path / "marks"
    marks.mkdir()
    run = cluster.submit(
        *(tmp_path / "run", READ_AND_WAIT, jet.url, marks, tmp_path / "output"),
        settings={"spark.sql.execution.arrow.maxRecordsPerBatch": "100"},
    )
    with run as application:
        application.until(lambda: set(executors(marks)) == {"0.0", "1.0"})
        executor = cluster.executor_in(executors(marks)["0.0"])
        executor.kill()
        # The other task still waits, so the lost one is started again in the midst of the batch, on a new executor.
        application.until(lambda: "0.1" in executors(marks))
        assert not executor.is_running()
        assert set(executors(marks)) == {"0.0", "1.0", "0.1"}
        assert len(set(executors(marks).values())) == 3
        (marks / "go").touch()
        rows = application.result()
    assert sorted((stream, sequence) for stream, sequence, _ in rows) == everything(400)
    # The lost task had half of the first batch.
    assert [attempt for *_, attempt in rows if attempt] == [1] * 600


class AccountJet(Jet):
    """JetStream of an account that wants credentials."""

    def __init__(self, account: Broker) -> None:
        self.url = account.url
        self.connection = Connection(account.url, credentials=account.credentials)


def fill(jet: Jet, count: int) -> None:
    jet.make(*STREAMS)
    for stream in STREAMS:
        jet.fill(stream, count)


def everything(count: int) -> list[tuple[str, int]]:
    return [(stream, number) for stream in STREAMS for number in range(1, count + 1)]


def executors(marks: Path) -> dict[str, Path]:
    """Where each attempt at a task runs, of those that wait."""
    return {mark.name: mark.readlink() for mark in marks.iterdir() if mark.is_symlink()}


def zip_of_the_package(target: Path) -> Path:
    with zipfile.ZipFile(target, "w") as archive:
        for package in ("nats_bulk", "pyspark_nats"):
            for path in sorted((SOURCES / package).glob("*.py")):
                archive.write(path, path.relative_to(SOURCES))
    return target
