"""A table that pipelines wrote is the same for everybody who opens it."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import polars as pl
import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from tenantry.errors import TableMismatch
from tenantry.pipelines.reading_tables import read_table
from tenantry.pipelines.table_upkeep import TableUpkeep
from tests.pipelines.own_lake import NOON, ROWS, OwnLake, numbered

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

WIDER = ROWS.append(pa.field("total", pa.float64())).append(pa.field("tags", pa.list_(pa.string())))

Rows = list[dict[str, Any]]


def _written(lake: OwnLake, place: str) -> Rows:
    """A table with a history: a column that came later, rows that were compacted and others that were not."""
    rows: Rows = [
        {"tenant": "acme", **numbered(number, NOON + timedelta(microseconds=number)), "total": None, "tags": None}
        for number in range(20)
    ]
    for start in range(0, 16, 2):
        lake.append(place, [{name: row[name] for name in ROWS.names} for row in rows[start : start + 2]])
    TableUpkeep(lake.lake).look_after(place, -1)
    for row in rows[16:]:
        row |= {"total": row["sequence"] / 4, "tags": ["größer", "🩺"], "data": None}
    lake.append(place, rows[16:], WIDER)
    return rows


def _read_with_duckdb(place: str) -> Rows:
    with duckdb.connect() as connection:
        connection.execute("set timezone = 'UTC'")
        connection.register("events", DeltaTable(place).to_pyarrow_dataset())
        return list(connection.sql("select * from events").to_arrow_table().to_pylist())


def _read_with_polars(place: str) -> Rows:
    return pl.read_delta(place).to_dicts()


def _read_with_delta(place: str) -> Rows:
    return list(DeltaTable(place).to_pyarrow_table().to_pylist())


@pytest.mark.parametrize("read", [_read_with_delta, _read_with_duckdb, _read_with_polars])
def test_a_table_opens_outside_of_spark(read: Callable[[str], Rows], tmp_path: Path) -> None:
    lake = OwnLake(str(tmp_path / "lake"))
    place = lake.place("acme")
    rows = _written(lake, place)
    assert sorted(map(_comparable, read(place)), key=_sequence) == rows


def test_a_table_opens_in_spark_without_a_package(spark: SparkSession, tmp_path: Path) -> None:
    lake = OwnLake(str(tmp_path / "a lake"))
    place = lake.place("acme")
    rows = _written(lake, place)
    table = read_table(spark, place)
    assert table.columns == WIDER.names
    assert [_comparable(row) for row in table.orderBy("sequence").toArrow().to_pylist()] == rows
    found = table.where(f"received >= timestamp '{rows[7]['received'].isoformat()}' and total is null")
    assert sorted(row["sequence"] for row in found.select("sequence").collect()) == list(range(7, 16))


def test_a_table_without_rows_opens_in_spark(spark: SparkSession, tmp_path: Path) -> None:
    lake = OwnLake(str(tmp_path))
    place = lake.place("acme")
    lake.append_numbered(place, 0)
    lake.open(place).delete()
    assert read_table(spark, place).columns == ROWS.names
    assert read_table(spark, place).count() == 0


def test_a_table_whose_files_are_not_its_rows_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    place = str(tmp_path / "others")
    configuration = {"delta.enableDeletionVectors": "true"}
    write_deltalake(place, pa.table({"number": [1, 2]}), configuration=configuration)
    with pytest.raises(TableMismatch, match=r"deletionVectors.*; open it with Spark's own Delta package"):
        read_table(spark, place)


def _sequence(row: dict[str, Any]) -> int:
    return int(row["sequence"])


def _comparable(row: dict[str, Any]) -> dict[str, Any]:
    """The same moment, whatever the zone that a reader shows it in."""
    return {
        name: value.astimezone(NOON.tzinfo) if isinstance(value, datetime) else value for name, value in row.items()
    }
