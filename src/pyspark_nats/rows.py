"""The rows of the source, as Arrow batches. Spark takes a batch as it is, with no Python work for each row."""

from __future__ import annotations

from itertools import compress
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from nats_bulk import RangeBatch, parse_headers
from pyspark_nats.subjects import SubjectFilter

MOST_ROWS: Final = 8192
MOST_BYTES: Final = 8 << 20

_HEADERS: Final = MapType(StringType(), ArrayType(StringType(), containsNull=False), valueContainsNull=False)
_COLUMNS: Final = (
    StructField("stream", StringType(), nullable=False),
    StructField("subject", StringType(), nullable=False),
    StructField("sequence", LongType(), nullable=False),
    StructField("timestamp", TimestampType(), nullable=False),
    StructField("data", BinaryType(), nullable=False),
)


def schema(*, include_headers: bool) -> StructType:
    headers = (StructField("headers", _HEADERS, nullable=False),) if include_headers else ()
    return StructType([*_COLUMNS, *headers])


class Rows:
    """Collects what was read of several streams until it makes a batch."""

    def __init__(self, *, include_headers: bool) -> None:
        self._schema = to_arrow_schema(schema(include_headers=include_headers), timezone="UTC")
        self._include_headers = include_headers
        self._start()

    def _start(self) -> None:
        self._size = 0
        self._streams: list[str] = []
        self._read = RangeBatch()

    @property
    def is_full(self) -> bool:
        return len(self._read) >= MOST_ROWS or self._size >= MOST_BYTES

    def __len__(self) -> int:
        return len(self._read)

    def add(self, stream: str, found: RangeBatch, subjects: SubjectFilter) -> None:
        if subjects:
            found = _select(found, list(map(subjects.takes, found.subjects)))
        read = self._read
        self._streams += [stream] * len(found)
        read.subjects += found.subjects
        read.sequences += found.sequences
        read.timestamps += found.timestamps
        read.payloads += found.payloads
        if self._include_headers:
            read.headers += found.headers
            self._size += sum(map(len, found.headers))
        self._size += sum(map(len, found.payloads))

    def take(self) -> pa.RecordBatch:
        """All that was collected."""
        read = self._read
        columns = [
            pa.array(self._streams, pa.string()),
            pa.array(read.subjects, pa.string()),
            pa.array(read.sequences, pa.int64()),
            pc.divide(pa.array(read.timestamps, pa.int64()), 1000).cast(pa.timestamp("us", "UTC")),
            pa.array(read.payloads, pa.binary()),
        ]
        if self._include_headers:
            headers = [list(parse_headers(block).items()) if block else [] for block in read.headers]
            columns.append(pa.array(headers, self._schema.field("headers").type))
        self._start()
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)


def _select(found: RangeBatch, wanted: list[bool]) -> RangeBatch:
    if all(wanted):
        return found
    return RangeBatch(
        list(compress(found.subjects, wanted)),
        list(compress(found.sequences, wanted)),
        list(compress(found.timestamps, wanted)),
        list(compress(found.headers, wanted)),
        list(compress(found.payloads, wanted)),
    )
