"""A lake in a folder or a store, and tables in it that are written as pipelines do: files by tasks, then a commit."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast
from uuid import UUID

import psycopg
import pyarrow as pa
from deltalake import DeltaTable
from psycopg_pool import ConnectionPool

from tenantry.pipelines.lake import Lake
from tenantry.pipelines.progress import Database
from tenantry.pipelines.table_files import FileWriter
from tenantry.pipelines.tables import Commit, File, Mark, Tables
from tenantry.tenants.administration import Administration
from tenantry.tenants.tenant import Tenant

ROWS = pa.schema(
    [
        ("tenant", pa.string()),
        ("sequence", pa.int64()),
        ("received", pa.timestamp("us", "UTC")),
        ("data", pa.string()),
    ]
)
HIDDEN = "table"
NOBODY = UUID(int=0)
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


class OwnLake:
    def __init__(self, root: str, options: Mapping[str, str] | None = None, database: Database | None = None) -> None:
        self.lake = Lake(root, options or {})
        self.root = root
        self.tables = Tables(self.lake, cast(Database, database))
        self._marks = itertools.count(1)
        self._owners: dict[str, UUID] = {}

    def place(self, tenant: str, table: str = "events") -> str:
        return f"{self.root}/tenant={tenant}/{table}"

    def claim(self, tenant: Tenant, table: str = "events") -> str:
        location = self.tables.claim([(tenant, table)])[tenant.id, table]
        self._owners[location] = tenant.uid
        return location

    def write_file(self, location: str, rows: Sequence[Mapping[str, Any]], schema: pa.Schema = ROWS) -> File:
        """As a task does; no table knows it yet."""
        given = [{"tenant": "acme", HIDDEN: "it"} | dict(row) for row in rows]
        whole = schema if "tenant" in schema.names else schema.append(pa.field("tenant", pa.string()))
        batch = pa.RecordBatch.from_pylist(given, schema=whole.append(pa.field(HIDDEN, pa.string())))
        hidden = (HIDDEN,) if "tenant" in schema.names else (HIDDEN, "tenant")
        writer = FileWriter(self.lake, {("acme", "it"): location}, HIDDEN, hidden)
        (written,) = [row for answer in writer(iter([batch])) for row in answer.to_pylist()]
        return File(written["file"], written["size"], written["rows"], written["statistics"])

    def append(
        self,
        location: str,
        rows: Sequence[Mapping[str, Any]],
        schema: pa.Schema = ROWS,
        mark: Mark | None = None,
    ) -> None:
        file = self.write_file(location, rows, schema)
        owner = self._owners.get(location, NOBODY)
        self.tables.commit(Commit(location, owner, schema, [file], mark or Mark("test", next(self._marks))))

    def append_numbered(self, location: str, first: int, count: int = 10, received: datetime = NOON) -> None:
        """Rows of these sequences."""
        self.append(location, [numbered(number, received) for number in range(first, first + count)])

    def open(self, location: str) -> DeltaTable:
        table = self.tables.open(location)
        assert table is not None
        return table

    def sequences(self, location: str) -> list[int]:
        return sorted(self.open(location).to_pyarrow_table()["sequence"].to_pylist())


def numbered(sequence: int, received: datetime = NOON) -> dict[str, Any]:
    return {"sequence": sequence, "received": received, "data": f"row {sequence}"}


@contextmanager
def registered_lake(
    administration: Administration, root: str, options: Mapping[str, str] | None = None
) -> Iterator[OwnLake]:
    """One whose tables are in the registry of these tenants."""
    with ConnectionPool(str(administration.pool.conninfo), min_size=1, kwargs={"autocommit": True}) as database:
        yield OwnLake(root, options, cast(Database, database))


def registered(administration: Administration) -> list[tuple[Any, ...]]:
    """Location, rows, files, and whether it was erased."""
    with psycopg.connect(str(administration.pool.conninfo)) as connection:
        return connection.execute(
            "select location, rows, files, erased_at is not null from tenantry.lake_tables order by location"
        ).fetchall()


def is_there(folder: str) -> bool:
    return Path(folder).exists()
