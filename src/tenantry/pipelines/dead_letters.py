"""Messages that are no events go to the dead letters, as they are, from inside a task."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import pyarrow as pa

from tenantry.pipelines.task_database import TaskConnection, transact
from tenantry.postgres.queries import SqlFolder

AT_ONCE: Final = 500

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
    for start in range(0, len(rows), AT_ONCE):
        yield rows.slice(start, AT_ONCE)


def _storable(text: str) -> str:
    return text.replace("\0", "\N{REPLACEMENT CHARACTER}")
