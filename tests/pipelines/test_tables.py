"""Tables: each batch once, whoever repeats it, and statistics by which readers miss no row."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.dataset as ds
import pytest
from deltalake import QueryBuilder
from hypothesis import given, settings
from hypothesis import strategies as st

from tenantry.errors import TableConflict, TableMismatch
from tenantry.pipelines.tables import Mark
from tenantry.tenants.administration import Administration
from tenantry.tenants.spec import TenantSpec
from tests.pipelines.own_lake import NOON, ROWS, OwnLake, numbered, registered_lake

VALUES = pa.schema(
    [
        ("id", pa.int64()),
        ("number", pa.int64()),
        ("measure", pa.float64()),
        ("moment", pa.timestamp("us", "UTC")),
        ("text", pa.string()),
    ]
)
DELTA_TYPES = {
    "number": "Int64",
    "measure": "Float64",
    "moment": 'Timestamp(Microsecond, Some("UTC"))',
    "text": "Utf8",
}
CLOSE_TOGETHER = st.integers(0, 10_000).map(lambda microseconds: NOON + timedelta(microseconds=microseconds))
COLUMNS: dict[str, st.SearchStrategy[Any]] = {
    "number": st.integers(-(1 << 63), (1 << 63) - 1) | st.integers(-3, 3),
    "measure": st.floats() | st.sampled_from([0.0, -0.0, -1.5, math.inf, -math.inf]),
    "moment": st.datetimes(timezones=st.just(UTC)) | CLOSE_TOGETHER,
    "text": st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=80)
    | st.text("a", min_size=60, max_size=70),
}
FILES = st.lists(
    st.lists(
        st.fixed_dictionaries({name: st.none() | values for name, values in COLUMNS.items()}), min_size=1, max_size=5
    ),
    min_size=1,
    max_size=3,
)


@pytest.fixture
def lake(tmp_path: Path) -> OwnLake:
    return OwnLake(str(tmp_path / "lake"))


def test_a_batch_is_committed_once_however_often_it_is_repeated(lake: OwnLake) -> None:
    place = lake.place("acme")
    for _ in range(3):
        lake.append(place, [numbered(1)], mark=Mark("orders", 1))
    again = OwnLake(lake.root)
    again.append(place, [numbered(1)], mark=Mark("orders", 1))
    again.append(place, [numbered(2)], mark=Mark("orders", 2))
    lake.append(place, [numbered(2)], mark=Mark("orders", 2))
    assert lake.sequences(place) == [1, 2]
    assert again.tables.version_of(place, "orders") == 2
    wanted = {place: "others", lake.place("globex"): "orders"}
    assert again.tables.versions_of(wanted) == ({place: 0, lake.place("globex"): 0}, {})


def test_a_writer_that_does_not_know_that_it_was_replaced_adds_nothing(lake: OwnLake) -> None:
    place = lake.place("acme")
    stale = OwnLake(lake.root)
    stale.append(place, [numbered(1)], mark=Mark("orders", 1))
    lake.append(place, [numbered(2)], mark=Mark("orders", 2))
    lake.append(place, [numbered(3)], mark=Mark("orders", 3))
    stale.append(place, [numbered(2)], mark=Mark("orders", 2))
    stale.append(place, [numbered(3)], mark=Mark("orders", 3))
    assert lake.sequences(place) == [1, 2, 3]


def test_a_writer_that_decided_by_an_older_version_adds_nothing_and_says_so(tmp_path: Path) -> None:
    lake, other = OwnLake(str(tmp_path)), OwnLake(str(tmp_path))
    place = lake.place("acme")
    lake.append(place, [numbered(1)], mark=Mark("orders", 1, 0))
    other.append(place, [numbered(2)], mark=Mark("orders", 2, 1))
    with pytest.raises(TableConflict, match=r"somebody else has added to the table .* up to 2"):
        lake.append(place, [numbered(2), numbered(3)], mark=Mark("orders", 3, 1))
    assert lake.sequences(place) == [1, 2]


def test_writers_of_different_pipelines_do_not_keep_each_other_out(lake: OwnLake) -> None:
    place = lake.place("acme")
    other = OwnLake(lake.root)
    for number in range(1, 6):
        lake.append(place, [numbered(number)], mark=Mark("orders", number))
        other.append(place, [numbered(-number)], mark=Mark("refunds", number))
    assert lake.sequences(place) == [-5, -4, -3, -2, -1, 1, 2, 3, 4, 5]


def test_a_writer_that_was_idle_for_longer_than_the_log_is_kept_goes_on(lake: OwnLake) -> None:
    place, asking = lake.place("acme"), OwnLake(lake.root)
    lake.append(place, [numbered(1)], mark=Mark("orders", 1))
    assert asking.tables.version_of(place, "orders") == 1
    other = OwnLake(lake.root)
    for number in range(1, 4):
        other.append(place, [numbered(-number)], mark=Mark("refunds", number))
    long_ago = (NOON - timedelta(days=100)).timestamp()
    for file in (Path(place) / "_delta_log").glob("*.json"):
        os.utime(file, (long_ago, long_ago))
    table = other.open(place)
    table.create_checkpoint()
    table.cleanup_metadata()
    lake.append(place, [numbered(2)], mark=Mark("orders", 2))
    assert lake.sequences(place) == [-3, -2, -1, 1, 2]
    assert asking.tables.version_of(place, "others") == 0


def test_columns_that_are_new_are_added_and_null_in_older_rows(lake: OwnLake) -> None:
    place = lake.place("acme")
    lake.append(place, [numbered(1)])
    wider = ROWS.append(pa.field("total", pa.float64()))
    lake.append(place, [numbered(2) | {"total": 2.5}], wider)
    lake.append(place, [numbered(3)])
    rows = lake.open(place).to_pyarrow_table().sort_by("sequence").to_pylist()
    assert [row["total"] for row in rows] == [None, 2.5, None]


def test_a_column_of_another_type_is_refused_with_what_to_do(lake: OwnLake) -> None:
    place = lake.place("acme")
    lake.append(place, [numbered(1)])
    other = pa.schema([field.with_type(pa.int64()) if field.name == "data" else field for field in ROWS])
    with pytest.raises(TableMismatch, match=r"column data of the table .*; give the column another name"):
        lake.append(place, [numbered(2) | {"data": 2}], other)
    lake.append(place, [numbered(3)])
    assert lake.sequences(place) == [1, 3]


async def test_a_tenant_made_anew_does_not_see_the_rows_of_the_old_one(
    administration: Administration, tmp_path: Path
) -> None:
    with registered_lake(administration, str(tmp_path / "lake")) as lake:
        old, *_ = await administration.put(TenantSpec(id="acme", tier="pooled"), "test")
        place = lake.claim(old)
        lake.append_numbered(place, 1)
        assert lake.claim(old) == place
        await administration.delete("acme", "test")
        new, *_ = await administration.put(TenantSpec(id="acme", tier="pooled"), "test")
        assert new.uid != old.uid
        assert lake.claim(new) == place
        assert lake.tables.open(place) is None
        lake.append_numbered(place, 100)
        assert lake.sequences(place) == list(range(100, 110))


@given(FILES)
@settings(max_examples=20)
def test_whoever_skips_files_by_their_statistics_finds_every_row(files: list[list[dict[str, Any]]]) -> None:
    with TemporaryDirectory() as folder:
        lake, ids = OwnLake(folder), iter(range(10_000))
        place = lake.place("acme")
        rows = [[{"id": next(ids)} | row for row in file] for file in files]
        for file in rows:
            lake.append(place, file, VALUES)
        everything = [row for file in rows for row in file]
        for name in COLUMNS:
            for wanted in [row for row in everything if _can_be_asked_for(row[name])][:3]:
                same = {row["id"] for row in everything if _is_same(row[name], wanted[name])}
                for reader, find in READERS.items():
                    assert same <= find(lake, place, name, wanted[name]), (reader, name, wanted[name])


def _can_be_asked_for(value: Any) -> bool:
    return value is not None and not (isinstance(value, float) and math.isnan(value))


def _is_same(value: Any, other: Any) -> bool:
    if isinstance(value, float) and isinstance(other, float):
        return value == other and math.copysign(1, value) == math.copysign(1, other)
    return bool(value == other)


def _find_with_arrow(lake: OwnLake, place: str, name: str, value: Any) -> set[int]:
    wanted = ds.field(name) == pa.scalar(value, VALUES.field(name).type)
    return set(lake.open(place).to_pyarrow_dataset().to_table(filter=wanted)["id"].to_pylist())


def _find_with_duckdb(lake: OwnLake, place: str, name: str, value: Any) -> set[int]:
    with duckdb.connect() as connection:
        connection.execute("set timezone = 'UTC'")
        connection.register("rows", lake.open(place).to_pyarrow_dataset())
        found = connection.execute(f"select id from rows where {name} = ?", [value])
        return {row[0] for row in found.fetchall()}


def _find_with_polars(lake: OwnLake, place: str, name: str, value: Any) -> set[int]:
    wanted = pl.col(name) == pl.lit(value, dtype=pl.Datetime("us", "UTC") if name == "moment" else None)
    return set(pl.scan_delta(place).filter(wanted).collect()["id"].to_list())


def _find_with_delta(lake: OwnLake, place: str, name: str, value: Any) -> set[int]:
    text = value.isoformat() if isinstance(value, datetime) else str(value).replace("'", "''")
    question = f"select id from rows where {name} = arrow_cast('{text}', '{DELTA_TYPES[name]}')"
    found = QueryBuilder().register("rows", lake.open(place)).execute(question).read_all()
    return set(pa.table(found)["id"].to_pylist())


READERS: dict[str, Callable[[OwnLake, str, str, Any], set[int]]] = {
    "arrow": _find_with_arrow,
    "DuckDB": _find_with_duckdb,
    "Polars": _find_with_polars,
    "delta-rs": _find_with_delta,
}
