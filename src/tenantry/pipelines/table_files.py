"""Writes rows into the files of tables, inside a task: one file a tenant and table, with its statistics.

A file belongs to no table yet; the driver adds it with a commit. What a failed task leaves behind is never seen, and
swept up by maintenance.
"""

from __future__ import annotations

import json
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any, Final
from uuid import uuid4

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tenantry.pipelines.lake import Lake

COMPRESSION: Final = "zstd"
COMPRESSION_LEVEL: Final = 1
LONGEST_STATISTIC: Final = 64
"""Characters; of longer texts the beginning is kept, and something that is greater than all that begin so."""
LAST_CHARACTER: Final = "\U0010ffff"
ORDERED: Final = (
    pa.types.is_boolean,
    pa.types.is_integer,
    pa.types.is_floating,
    pa.types.is_decimal,
    pa.types.is_date,
    pa.types.is_timestamp,
    pa.types.is_string,
    pa.types.is_large_string,
)

WRITTEN_DDL: Final = (
    "tenant string, table string, file string, size bigint, rows bigint, statistics string, first bigint, "
    "last bigint, bytes bigint, seconds double"
)
WRITTEN: Final = pa.schema(
    [
        ("tenant", pa.string()),
        ("table", pa.string()),
        ("file", pa.string()),
        ("size", pa.int64()),
        ("rows", pa.int64()),
        ("statistics", pa.string()),
        ("first", pa.int64()),
        ("last", pa.int64()),
        ("bytes", pa.int64()),
        ("seconds", pa.float64()),
    ]
)
TENANT: Final = "tenant"


@dataclass(frozen=True, slots=True)
class FileWriter:
    """For `DataFrame.mapInArrow`."""

    lake: Lake
    locations: Mapping[tuple[str, str], str]
    """By tenant and table; rows of others are an error, for a table must never get them."""
    table_column: str
    """The column that says which of the tenant's tables a row is for."""
    hidden: tuple[str, ...] = ()
    """Columns that are not written."""

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        began = time.perf_counter()
        parts: defaultdict[tuple[str, ...], list[pa.RecordBatch]] = defaultdict(list)
        for batch in batches:
            for owner, part in divide(batch, TENANT, self.table_column):
                parts[owner].append(part)
        written = [self._write(owner, pa.Table.from_batches(part)) for owner, part in parts.items()]
        seconds = time.perf_counter() - began
        everything = sum(row["bytes"] for row in written) or 1
        for row in written:
            row["seconds"] = seconds * row["bytes"] / everything
        yield pa.RecordBatch.from_pylist(written, schema=WRITTEN)

    def _write(self, owner: tuple[str, ...], rows: pa.Table) -> dict[str, Any]:
        tenant, table = owner
        if (tenant, table) not in self.locations:
            raise LookupError(f"a pipeline gave rows of tenant {tenant!r}, which is none of those that it was given")
        sequences = rows["sequence"] if "sequence" in rows.column_names else None
        shown = rows.drop_columns([name for name in self.hidden if name in rows.column_names])
        file = f"part-{uuid4()}.parquet"
        filesystem = self.lake.filesystem(self.locations[tenant, table])
        with filesystem.open_output_stream(file) as sink:
            pq.write_table(shown, sink, compression=COMPRESSION, compression_level=COMPRESSION_LEVEL)
            size = sink.tell()
        return {
            "tenant": tenant,
            "table": table,
            "file": file,
            "size": size,
            "rows": len(shown),
            # As they are: delta-rs misreads some characters that are written as pairs of escapes.
            "statistics": json.dumps(statistics(shown), ensure_ascii=False, allow_nan=False),
            "first": pc.min(sequences).as_py() if sequences is not None else None,
            "last": pc.max(sequences).as_py() if sequences is not None else None,
            "bytes": pc.sum(rows["bytes"]).as_py() if "bytes" in rows.column_names else shown.nbytes,
        }


def divide(batch: pa.RecordBatch, *columns: str) -> Iterator[tuple[tuple[str, ...], pa.RecordBatch]]:
    """The rows of each owner, in their order."""
    encoded = [pc.dictionary_encode(batch.column(name)) for name in columns]
    codes = np.zeros(len(batch), dtype=np.int64)
    for column in encoded:
        codes = codes * (len(column.dictionary) + 1) + pc.fill_null(column.indices, len(column.dictionary)).to_numpy()
    if len(codes) and np.any(codes[1:] < codes[:-1]):
        order = np.argsort(codes, kind="stable")
        codes, batch = codes[order], batch.take(pa.array(order))
        encoded = [column.take(pa.array(order)) for column in encoded]
    starts = np.flatnonzero(np.r_[True, codes[1:] != codes[:-1]]) if len(codes) else np.array([], dtype=np.int64)
    for start, end in zip(starts, np.r_[starts[1:], len(codes)], strict=True):
        owner = tuple(column[int(start)].as_py() for column in encoded)
        yield owner, batch.slice(int(start), int(end - start))


def statistics(rows: pa.Table) -> dict[str, Any]:
    """As Delta tables keep them: how many rows, and the least, the greatest and the missing values of each column.

    All columns or none: where ends are missing, delta-rs tells Arrow and DuckDB that nothing in the file is like them.
    """
    least: dict[str, Any] = {}
    greatest: dict[str, Any] = {}
    missing: dict[str, int] = {}
    for name, column in zip(rows.column_names, rows.columns, strict=True):
        if pa.types.is_nested(column.type):
            continue
        missing[name] = column.null_count
        if not _is_ordered(column.type) or column.null_count == len(column):
            continue
        try:
            ends = pc.min_max(column).as_py()
            if pa.types.is_floating(column.type) and not pc.all(pc.is_finite(column)).as_py():
                raise ArithmeticError("JSON has no word for NaN and infinity")
            least[name], greatest[name] = _plain(ends["min"], up=False), _plain(ends["max"], up=True)
        except (ArithmeticError, ValueError):
            return {"numRecords": len(rows)}
    return {"numRecords": len(rows), "minValues": least, "maxValues": greatest, "nullCount": missing}


def _is_ordered(kind: pa.DataType) -> bool:
    return any(is_it(kind) for is_it in ORDERED)


def _plain(value: Any, *, up: bool) -> Any:
    if isinstance(value, datetime):
        # To the millisecond, and outwards: a reader that skips files by this must miss none.
        moment = value if value.tzinfo else value.replace(tzinfo=UTC)
        if up and moment.microsecond % 1000:
            moment += timedelta(milliseconds=1)
        return moment.astimezone(UTC).replace(tzinfo=None).isoformat(timespec="milliseconds") + "Z"
    if isinstance(value, str) and len(value) > LONGEST_STATISTIC:
        beginning, next = value[:LONGEST_STATISTIC], value[LONGEST_STATISTIC]
        return (value if next == LAST_CHARACTER else beginning + LAST_CHARACTER) if up else beginning
    if isinstance(value, float) and value == 0:
        # Some readers put -0.0 before 0.0, and Arrow returns either.
        return 0.0 if up else -0.0
    if isinstance(value, Decimal):
        if Decimal(repr(float(value))) != value:
            raise ArithmeticError("readers take it for a float, which it does not fit into")
        return float(value)
    return value.isoformat() if hasattr(value, "isoformat") else value
