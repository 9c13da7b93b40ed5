"""A query as Spark's micro-batch engine runs it, without the JVM: thousands of batches in the time of a few.

Offsets go through text, readers and tasks through pickle, and each batch is written down before it is read.
"""

from __future__ import annotations

import json
import pickle
from typing import Any, NamedTuple

from pyspark.sql.streaming.datasource import ReadLimit

from pyspark_nats.options import ReadOptions
from pyspark_nats.stream_reader import NatsStreamReader


class Row(NamedTuple):
    stream: str
    subject: str
    sequence: int
    data: bytes


class Query:
    def __init__(self, url: str, **options: str) -> None:
        self._options = {"nats.url": url} | {name.replace("__", "."): value for name, value in options.items()}
        self.log: list[str] = []
        """The offsets that a checkpoint would hold: the initial one, and the end of each batch."""
        self.restart()

    def restart(self, **options: str) -> None:
        """A new driver, which knows what is in the checkpoint and nothing else: the initial offset is not in there."""
        self._options |= options
        self._knows_initial = False
        self.reader = NatsStreamReader(ReadOptions.parse(self._options, streaming=True))

    def available_now(self) -> None:
        self.reader.prepareForTriggerAvailableNow()

    def trigger(self, limit: ReadLimit | None = None) -> list[Row]:
        """Run a batch if there is something to read."""
        self.plan(limit)
        return self.read(len(self.log) - 2) if self.planned else []

    def plan(self, limit: ReadLimit | None = None) -> None:
        """Write a batch down, as Spark does before it reads."""
        if len(self.log) < 2:
            self._start_over()
        start = self.log[-1]
        end = json.dumps(self.reader.latestOffset(json.loads(start), limit or self.reader.getDefaultReadLimit()))
        self.planned = end != start
        if self.planned:
            self.log.append(end)

    def _start_over(self) -> None:
        if not self._knows_initial:
            self.log[:1] = [json.dumps(self.reader.initialOffset())]
        self._knows_initial = True

    def tasks(self, number: int) -> list[Any]:
        if number == 0:
            self._start_over()
        start, end = json.loads(self.log[number]), json.loads(self.log[number + 1])
        return [pickle.loads(pickle.dumps(task)) for task in self.reader.partitions(start, end)]

    def read(self, number: int) -> list[Row]:
        return [row for rows in self.read_by_task(number) for row in rows]

    def read_by_task(self, number: int) -> list[list[Row]]:
        reader = pickle.loads(pickle.dumps(self.reader))
        return [
            [
                Row(row["stream"], row["subject"], row["sequence"], row["data"])
                for batch in reader.read(task)
                for row in batch.to_pylist()
            ]
            for task in self.tasks(number)
        ]
