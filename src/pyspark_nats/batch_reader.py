"""`spark.read`: one range of each stream, as they were when the query was planned."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from pyspark_nats.errors import OptionInvalid
from pyspark_nats.options import ReadOptions
from pyspark_nats.reading import read_task
from pyspark_nats.selection import Selection
from pyspark_nats.starting import resolve, resolve_start
from pyspark_nats.task import Task, plan_cuts, plan_tasks


class NatsReader(DataSourceReader):
    def __init__(self, options: ReadOptions) -> None:
        self._options = options

    def partitions(self) -> list[InputPartition]:
        selection = Selection(self._options)
        selection.look()
        selection.require_all()
        states = selection.states
        start = resolve_start(self._options.starting, states, selection)
        end = resolve(self._options.ending, states, selection)
        for key in states:
            if start[key] > end[key]:
                raise OptionInvalid(
                    f"expected stream {key} to end after it starts, got: {start[key]} to {end[key]}; it has sequences "
                    f"{states[key].first} to {states[key].next - 1}"
                )
        ranges = {key: (start[key], end[key] - 1) for key in sorted(states) if start[key] < end[key]}
        cuts = plan_cuts(ranges, selection, self._options.tasks, order=self._options.order)
        # Spark wants one partition at least.
        return list(plan_tasks(ranges, cuts, selection)) or [Task((), ())]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Task)
        return read_task(partition, self._options)
