"""What a task asks of PostgreSQL, all of it in one transaction."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

import psycopg

from tenantry.errors import DocumentConflict, DocumentRefused
from tenantry.pipelines.arrivals import LaneName
from tenantry.pipelines.lane_fold import Change, LaneFold, Position, Stored
from tenantry.pipelines.task_database import TaskConnection, is_about_data
from tenantry.postgres.queries import SqlFolder

# PostgreSQL takes at most 1 GiB at once.
LARGEST_WRITE: Final = 32 << 20

_sql = SqlFolder("tenantry.pipelines")


class FoldStore:
    def __init__(self, connection: TaskConnection, pipeline: str, projection: str) -> None:
        self._connection = connection
        self._pipeline = pipeline
        self._projection = projection
        self._ask("fold_see_documents")

    def lock(self, lanes: Iterable[LaneName]) -> list[Position]:
        """Nobody else moves these lanes before the transaction ends. Those that are gone or parked are left out."""
        tenants, channels = zip(*lanes, strict=True)
        wanted = {"pipeline": self._pipeline, "tenants": list(tenants), "channels": list(channels)}
        return [Position(*row) for row in self._ask("fold_lock_lanes", wanted)]

    def load(self, folds: Sequence[LaneFold]) -> list[dict[str, Stored]]:
        """The documents that are there, by id, for each lane."""
        wanted = [(number, fold.position, id) for number, fold in enumerate(folds) for id in sorted(fold.ids)]
        found: list[dict[str, Stored]] = [{} for _ in folds]
        for number, id, *stored in self._load(wanted):
            found[number][id] = Stored(*stored)
        return found

    def write(self, folds: Sequence[LaneFold], *, is_trial: bool = False) -> None:
        """Write all changes or, if a DocumentError says that one cannot be, none. Of a trial, none stays."""
        try:
            with self._connection.transaction():
                for portion in _portions(folds):
                    self._write_portion(folds, portion)
                if is_trial:
                    raise psycopg.Rollback
        except psycopg.Error as problem:
            if not is_about_data(problem):
                raise
            raise self._refusal(problem) from None

    def advance(self, folds: Sequence[LaneFold]) -> None:
        parkings = [fold.parking for fold in folds]
        self._tell(
            "fold_advance_lanes",
            folds,
            sequences=[fold.sequence for fold in folds],
            parked_sequences=[each and each.sequence for each in parkings],
            parked_reasons=[each and each.reason for each in parkings],
            parked_tracebacks=[each and each.traceback for each in parkings],
        )

    def charge(self, folds: Sequence[LaneFold], seconds: float) -> None:
        """Add to the tenants' usage; the time is divided by bytes."""
        folds = [fold for fold in folds if fold.applied]
        sizes = [sum(arrival.bytes for arrival in fold.applied) for fold in folds]
        total = sum(sizes) or 1
        self._tell(
            "fold_add_usage",
            folds,
            events=[len(fold.applied) for fold in folds],
            bytes=sizes,
            task_seconds=[seconds * size / total for size in sizes],
        )

    def _load(self, wanted: Sequence[tuple[int, Position, str]]) -> list[tuple[Any, ...]]:
        parameters = {
            "projection": self._projection,
            "lanes": [number for number, _, _ in wanted],
            "tenants": [position.tenant for _, position, _ in wanted],
            "generations": [position.generation for _, position, _ in wanted],
            "ids": [id for _, _, id in wanted],
        }
        return self._ask("fold_load_documents", parameters)

    def _write_portion(self, folds: Sequence[LaneFold], portion: Sequence[tuple[int, Change]]) -> None:
        places = [folds[number].position for number, _ in portion]
        changes = [change for _, change in portion]
        refused = self._ask(
            "fold_write_documents",
            {
                "projection": self._projection,
                "lanes": [number for number, _ in portion],
                "tenants": [place.tenant for place in places],
                "generations": [place.generation for place in places],
                "channels": [place.channel for place in places],
                "ids": [change.id for change in changes],
                "documents": [change.document for change in changes],
                "sequences": [change.sequence for change in changes],
                "expected": [change.expected for change in changes],
            },
        )
        for number, id, expected in refused:
            raise self._conflict(folds[number].position, id, expected)

    def _conflict(self, position: Position, id: str, expected: int | None) -> DocumentConflict:
        found = [Stored(*stored) for _, _, *stored in self._load([(0, position, id)])]
        return DocumentConflict(
            f"document {id!r} of projection {self._projection} was changed by somebody else: expected it "
            f"{'not to be there' if expected is None else f'to be at sequence {expected}'}, "
            f"it is {f'at sequence {found[0].sequence}' if found else 'gone'}; "
            "find out who writes it, then rebuild the projection"
        )

    def _refusal(self, problem: psycopg.Error) -> DocumentRefused:
        said = ": ".join(filter(None, (problem.diag.message_primary or str(problem), problem.diag.message_detail)))
        return DocumentRefused(
            f"PostgreSQL does not take what projection {self._projection} makes of this event: {said}; "
            "leave that out of the document"
        )

    def _tell(self, name: str, folds: Sequence[LaneFold], **columns: list[Any]) -> None:
        tenants = [fold.position.tenant for fold in folds]
        channels = [fold.position.channel for fold in folds]
        parameters = {"pipeline": self._pipeline, "tenants": tenants, "channels": channels, **columns}
        self._connection.execute(_sql.text(name), parameters)

    def _ask(self, name: str, parameters: dict[str, Any] | None = None) -> list[tuple[Any, ...]]:
        return self._connection.execute(_sql.text(name), parameters).fetchall()


def _portions(folds: Sequence[LaneFold]) -> Iterator[list[tuple[int, Change]]]:
    portion: list[tuple[int, Change]] = []
    size = 0
    for number, fold in enumerate(folds):
        for change in fold.changes:
            portion.append((number, change))
            size += len(change.document or "")
            if size >= LARGEST_WRITE:
                yield portion
                portion, size = [], 0
    if portion:
        yield portion
