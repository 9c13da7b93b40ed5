"""The tables of all tenants, as the driver commits to them: each batch once, whoever repeats it."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Final, NamedTuple
from uuid import UUID

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from deltalake.schema import Schema
from deltalake.transaction import AddAction

from tenantry.errors import TableConflict, TableMismatch
from tenantry.pipelines.lake import Lake
from tenantry.pipelines.progress import Database
from tenantry.postgres.queries import SqlFolder
from tenantry.tenants.tenant import Tenant

ATTEMPTS: Final = 5
COMMITS_AT_ONCE: Final = 4
SETTINGS: Final = {"delta.checkpointInterval": "50", "delta.logRetentionDuration": "interval 7 days"}

_sql = SqlFolder("tenantry.pipelines")


class Mark(NamedTuple):
    """What a commit says of itself, so that it is not made twice."""

    application: str
    version: int
    base: int | None = None
    """The version that the table had when it was decided what to add; none: whatever it has."""


class File(NamedTuple):
    """A file that a task has written."""

    name: str
    size: int
    rows: int
    statistics: str


class Commit(NamedTuple):
    """What is added to a table, and whose the table must still be."""

    location: str
    owner: UUID
    schema: pa.Schema
    files: list[File]
    mark: Mark


class Tables:
    """May be used from any thread; a table is committed to by one at a time."""

    def __init__(self, lake: Lake, database: Database) -> None:
        self.lake = lake
        self._database = database
        self._open: dict[str, DeltaTable] = {}
        self._claimed: dict[str, Any] = {}
        self._locks: dict[str, threading.Lock] = {}
        self._lock = threading.Lock()
        self._committers = ThreadPoolExecutor(COMMITS_AT_ONCE, "commit")

    def claim(self, wanted: Iterable[tuple[Tenant, str]]) -> dict[tuple[str, str], str]:
        """The locations of tables, by tenant and table; what is left there of a tenant of the same name goes first."""
        pairs = list(wanted)
        locations = {(tenant.id, table): self.lake.location(tenant, table) for tenant, table in pairs}
        fresh = [
            (locations[tenant.id, table], tenant, table)
            for tenant, table in pairs
            if self._claimed.get(locations[tenant.id, table]) != tenant.uid
        ]
        if fresh:
            self._claim(fresh)
        return locations

    def _claim(self, fresh: list[tuple[str, Tenant, str]]) -> None:
        owners = {location: tenant.uid for location, tenant, _ in fresh}
        for location in owners:
            # What we know of the table that was there does not count for the one that is.
            self._open.pop(location, None)
        # All or nothing: what is claimed is in the registry when it is written to, whoever erases meanwhile.
        with self._database.connection() as connection, connection.transaction():
            others = connection.execute(
                _sql.text("claim_tables"),
                {
                    "locations": list(owners),
                    "tenants": [tenant.id for _, tenant, _ in fresh],
                    "uids": list(owners.values()),
                    "names": [table for _, _, table in fresh],
                },
            ).fetchall()
            for (location,) in others:
                self.lake.erase(location)
                connection.execute(_sql.text("take_over_table"), {"location": location, "uid": owners[location]})
        self._claimed |= owners

    def version_of(self, location: str, application: str) -> int:
        """The last version that was committed under this name; nought if none was."""
        with self._locked(location):
            table = self._find(location)
            try:
                return (table.transaction_version(application) or 0) if table else 0
            except DeltaError:
                # Our view is so old that its log is gone.
                self._open.pop(location, None)
            table = self._find(location)
            return (table.transaction_version(application) or 0) if table else 0

    def versions_of(self, wanted: Mapping[str, str]) -> tuple[dict[str, int], dict[str, Exception]]:
        """By location, for many tables at once; and those that cannot be opened, with the reason."""
        waiting = {place: self._committers.submit(self.version_of, place, name) for place, name in wanted.items()}
        problems = _problems(waiting)
        return {place: each.result() for place, each in waiting.items() if place not in problems}, problems

    def commit_all(self, commits: Iterable[Commit]) -> dict[str, Exception]:
        """Each table by itself; those that could not be committed to, with the reason."""
        return _problems({commit.location: self._committers.submit(self.commit, commit) for commit in commits})

    def commit(self, commit: Commit) -> None:
        """Add files to a table, and make the table if there is none."""
        location, owner, schema, files, mark = commit
        with self._locked(location):
            if self._claimed.get(location, owner) != owner:
                raise TableConflict(
                    f"the table {location} is another tenant's by now, of the same name; nothing is added"
                )
            for attempt in range(ATTEMPTS):
                table = self._find(location) or self._create(location, schema)
                try:
                    version = table.transaction_version(mark.application) or 0
                    if version >= mark.version:
                        return
                    if mark.base is not None and version != mark.base:
                        raise TableConflict(
                            f"somebody else has added to the table {location} up to {version}, and it was taken to be "
                            f"at {mark.base}; nothing is added. Does another process run the same pipelines?"
                        )
                    _widen(table, schema)
                    table.create_write_transaction(
                        [_addition(file) for file in files],
                        "append",
                        table.schema(),
                        commit_properties=CommitProperties(
                            app_transactions=[Transaction(mark.application, mark.version)]
                        ),
                    )
                    table.update_incremental()
                except DeltaError:
                    # Somebody else was first: maintenance, or another driver that does not know yet that it has ended.
                    # Or our view is so old that the log between is gone.
                    self._open.pop(location, None)
                    if attempt == ATTEMPTS - 1:
                        raise
                    continue
                return

    def replace(self, location: str, first: int, last: int, rows: pa.Table, seen: pa.Array) -> None:
        """Put rows in the place of those of the same sequences, in one commit.

        Those between `first` and `last` whose sequences were not seen stay: their events are gone, and they are not.
        """
        with self._locked(location):
            for attempt in range(ATTEMPTS):
                table = self.open(location) or self._create(location, rows.schema)
                _widen(table, rows.schema)
                sequence = pc.field("sequence")
                unseen = (sequence >= first) & (sequence <= last) & ~sequence.isin(seen)
                kept = table.to_pyarrow_dataset().to_table(filter=unseen)
                try:
                    write_deltalake(
                        table,
                        pa.concat_tables([kept, _fit(rows, kept.schema)]),
                        mode="overwrite",
                        predicate=f"sequence >= {first} and sequence <= {last}",
                    )
                except CommitFailedError:
                    if attempt == ATTEMPTS - 1:
                        raise
                    continue
                finally:
                    self._open.pop(location, None)
                return

    def open(self, location: str) -> DeltaTable | None:
        """A table as it is now, for somebody to work with by himself."""
        try:
            return DeltaTable(location, storage_options=self.lake.storage_options(location))
        except TableNotFoundError:
            return None

    def close(self) -> None:
        self._committers.shutdown()

    def _find(self, location: str) -> DeltaTable | None:
        table = self._open.get(location)
        if table is None and (table := self.open(location)):
            self._open[location] = table
        return table

    def _create(self, location: str, schema: pa.Schema) -> DeltaTable:
        table = DeltaTable.create(
            location,
            Schema.from_arrow(schema),
            mode="ignore",
            configuration=SETTINGS,
            storage_options=self.lake.storage_options(location),
        )
        self._open[location] = table
        return table

    def _locked(self, location: str) -> threading.Lock:
        with self._lock:
            return self._locks.setdefault(location, threading.Lock())


def _problems(waiting: Mapping[str, Future[Any]]) -> dict[str, Exception]:
    found: dict[str, Exception] = {}
    for place, each in waiting.items():
        problem = each.exception()
        if isinstance(problem, Exception):
            found[place] = problem
        elif problem is not None:
            raise problem
    return found


def _addition(file: File) -> AddAction:
    return AddAction(file.name, file.size, {}, int(time.time() * 1000), True, file.statistics)


def _fit(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """In the columns of the table; what the rows have not is null."""
    columns = [
        rows[field.name].cast(field.type) if field.name in rows.column_names else pa.nulls(len(rows), field.type)
        for field in schema
    ]
    return pa.table(columns, schema=schema)


def _widen(table: DeltaTable, schema: pa.Schema) -> None:
    """Columns that rows have and the table has not are added; those of another type cannot be."""
    wanted = {field.name: field for field in Schema.from_arrow(schema).fields}
    known = {field.name: field for field in table.schema().fields}
    for name, field in wanted.items():
        if name in known and known[name].type != field.type:
            raise TableMismatch(
                f"column {name} of the table {table.table_uri} is {known[name].type}, and the pipeline now gives "
                f"{field.type}; give the column another name, or the pipeline another table"
            )
    if fresh := [field for name, field in wanted.items() if name not in known]:
        table.alter.add_columns(fresh)
        table.update_incremental()
