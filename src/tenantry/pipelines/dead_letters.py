"""Messages that are no events go to the dead letters, as they are, from inside a task."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from tenantry.pipelines.task_database import TaskConnection, transact
from tenantry.postgres.queries import SqlFolder

AT_ONCE: Final = 500
MOST_BYTES: Final = 16 << 20

_sql = SqlFolder("tenantry.pipelines")


def bury(database_url: str, rows: pa.RecordBatch) -> None:
    """Once each, however often it is done. Text that PostgreSQL cannot keep is shown without what it cannot."""

    def insert(connection: TaskConnection) -> None:
        for part in _parts(rows):
            columns = part.to_pydict()
            connection.execute(
                _sql.text("bury_events"),
                {
                    "tenants": columns["tenant"],
                    "channels": columns["channel"],
                    "sequences": columns["sequence"],
                    "subjects": [_storable(text) for text in columns["address"]],
                    "payloads": columns["payload"],
                    "reasons": [_storable(text) for text in columns["problem"]],
                    "traces": [text and _storable(text) for text in columns["trace"]],
                    "times": columns["received"],
                },
            )

    transact(database_url, insert)


def _parts(rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """A statement takes a gigabyte at most."""
    start, size = 0, 0
    for number, length in enumerate(pc.binary_length(rows.column("payload")).to_pylist()):
        if size and (size + length > MOST_BYTES or number - start >= AT_ONCE):
            yield rows.slice(start, number - start)
            start, size = number, 0
        size += length + 1
    yield rows.slice(start)


def _storable(text: str) -> str:
    return text.replace("\0", "\N{REPLACEMENT CHARACTER}")
