"""Inside a task: reads its ranges, in order, and says what is missing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import pyarrow as pa

from nats_bulk import BulkError, RangeBeyondEnd, StreamGone, read_range
from pyspark_nats.connections import CONNECTIONS
from pyspark_nats.errors import StreamsUnavailable
from pyspark_nats.losses import Losses, sequences
from pyspark_nats.options import ReadOptions
from pyspark_nats.rows import Rows
from pyspark_nats.subjects import SubjectFilter
from pyspark_nats.task import Task

# Where the catalog can leave a stream out, one account that does not let us in holds up the others for so long.
PATIENCE_OF_MANY: Final = 5.0


def read_task(task: Task, options: ReadOptions) -> Iterator[pa.RecordBatch]:
    rows = Rows(include_headers=options.include_headers)
    losses = Losses(fail=options.fail_on_loss)
    for part in task.ranges:
        access = task.accesses[part.access]
        wanted = SubjectFilter(part.subjects or options.subjects, part.excluding)
        try:
            connection = (
                CONNECTIONS.use(access) if options.drain_unlisted else CONNECTIONS.use(access, PATIENCE_OF_MANY)
            )
            for found in read_range(connection, part.stream, part.first, part.last, api_prefix=access.api_prefix):
                for first, last in found.gaps:
                    losses.tell(f"stream {part.key} no longer has {sequences(first, last)}")
                rows.add(part.key, found, wanted)
                if rows.is_full:
                    yield rows.take()
        except (RangeBeyondEnd, StreamGone) as problem:
            if not options.drain_unlisted:
                # The catalog will say what has become of it; until then nothing is known to be lost.
                raise StreamsUnavailable(f"stream {part.key} cannot be read: {problem}") from problem
            losses.tell(f"{sequences(part.first, part.last)} of stream {part.key} cannot be read: {problem}")
        except BulkError as problem:
            if options.drain_unlisted:
                raise
            raise StreamsUnavailable(f"stream {part.key} cannot be read: {problem}") from problem
    if len(rows):
        yield rows.take()
