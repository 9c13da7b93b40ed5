"""Looks after one table: few large files, no rows past their time, no files that nobody needs, a short log."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, TypeVar

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError, TableNotFoundError
from deltalake.schema import PrimitiveType

from tenantry.pipelines.lake import Lake
from tenantry.tenants.quantities import UNLIMITED

ATTEMPTS: Final = 5
SMALL_BYTES: Final = 16 << 20
ENOUGH_SMALL: Final = 8
TARGET_BYTES: Final = 128 << 20
KEEP_HOURS: Final = 24 * 7
"""Readers of an older version may still need a file; and a file that is in no version may be about to be committed."""
STEPS: Final = 24
RECEIVED: Final = "received"

Result = TypeVar("Result")


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """How large a table is."""

    rows: int
    bytes: int
    files: int
    version: int


class Upkept(msgspec.Struct, frozen=True, kw_only=True):
    """What was done to a table, and how large it is now."""

    figures: Figures
    files_before: int
    rows_deleted: int
    files_removed: int
    seconds: float


@dataclass(frozen=True, slots=True)
class TableUpkeep:
    """Works while others append: whoever commits second does it again on top of the first."""

    lake: Lake
    enough_small: int = ENOUGH_SMALL
    keep_hours: int = KEEP_HOURS

    def look(self, location: str) -> Figures | None:
        """Nothing, if there is no table yet."""
        table = self._open(location)
        return _figures(table) if table else None

    def look_after(self, location: str, retention: int, known_version: int = 0) -> Upkept | None:
        """`retention` in seconds, and the version that was there the last time; nothing, if there is no table yet."""
        began = time.perf_counter()
        before = self.look(location)
        if before is None:
            return None
        rows_deleted = self._repeat(location, lambda table: _delete_old(table, retention))
        self._repeat(location, self._compact)
        files_removed = self._repeat(location, self._sweep)
        table = self._require(location)
        if table.version() != known_version:
            table.create_checkpoint()
            table.cleanup_metadata()
        return Upkept(
            figures=_figures(table),
            files_before=before.files,
            rows_deleted=rows_deleted,
            files_removed=files_removed,
            seconds=time.perf_counter() - began,
        )

    def _compact(self, table: DeltaTable) -> None:
        sizes = pa.table(table.get_add_actions())["size_bytes"].to_pylist()
        if sum(size < SMALL_BYTES for size in sizes) >= self.enough_small:
            # One at a time: it shares the machine with those who write.
            table.optimize.compact(target_size=TARGET_BYTES, max_concurrent_tasks=1)

    def _sweep(self, table: DeltaTable) -> int:
        def vacuum(*, dry_run: bool) -> list[str]:
            return table.vacuum(
                self.keep_hours, dry_run=dry_run, full=True, enforce_retention_duration=self.keep_hours >= KEEP_HOURS
            )

        # Each sweep is two entries in the log, even if it finds nothing.
        return len(vacuum(dry_run=False)) if vacuum(dry_run=True) else 0

    def _repeat(self, location: str, work: Callable[[DeltaTable], Result]) -> Result:
        for attempt in range(1, ATTEMPTS + 1):
            try:
                return work(self._require(location))
            except CommitFailedError:
                if attempt == ATTEMPTS:
                    raise
        raise AssertionError

    def _open(self, location: str) -> DeltaTable | None:
        try:
            return self._require(location)
        except TableNotFoundError:
            return None

    def _require(self, location: str) -> DeltaTable:
        return DeltaTable(location, storage_options=self.lake.storage_options(location))


def _delete_old(table: DeltaTable, retention: int) -> int:
    if retention == UNLIMITED or not _has_received(table):
        return 0
    # Not to the second, for each time the file at the edge is written anew.
    step = max(1, retention // STEPS)
    edge = datetime.fromtimestamp((time.time() - retention) // step * step, UTC)
    done: dict[str, Any] = table.delete(f"{RECEIVED} < '{edge:%Y-%m-%dT%H:%M:%S}Z'")
    return int(done.get("num_deleted_rows") or 0)


def _has_received(table: DeltaTable) -> bool:
    return any(field.name == RECEIVED and field.type == PrimitiveType("timestamp") for field in table.schema().fields)


def _figures(table: DeltaTable) -> Figures:
    files = pa.table(table.get_add_actions())
    return Figures(
        rows=pc.sum(files["num_records"]).as_py() or 0,
        bytes=pc.sum(files["size_bytes"]).as_py() or 0,
        files=len(files),
        version=table.version(),
    )
