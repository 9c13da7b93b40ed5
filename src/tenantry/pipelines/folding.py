"""What a task of a projection does: events in, documents in PostgreSQL, and how far each lane is out.

One transaction: lock the lanes ─► fold what is new to them ─► write documents ─► move the lanes, note what it cost
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa

from tenantry.application import Projection
from tenantry.errors import DocumentError
from tenantry.pipelines.arrivals import Arrival, LaneName, read_arrivals
from tenantry.pipelines.fold_store import FoldStore
from tenantry.pipelines.lane_fold import LaneFold, Stored
from tenantry.pipelines.task_database import TaskConnection, transact

FOLDED: Final = pa.schema(
    [
        ("tenant", pa.string()),
        ("channel", pa.string()),
        ("sequence", pa.int64()),
        ("events", pa.int64()),
        ("bytes", pa.int64()),
        ("parked_sequence", pa.int64()),
        ("parked_reason", pa.string()),
        ("parked_traceback", pa.string()),
    ]
)
FOLDED_DDL: Final = (
    "tenant string, channel string, sequence bigint, events bigint, bytes bigint, "
    "parked_sequence bigint, parked_reason string, parked_traceback string"
)


@dataclass(frozen=True, slots=True)
class Folding:
    """For `DataFrame.mapInArrow`: whole lanes, each in order, to a row of `FOLDED` for each.

    To repeat it with the same events changes nothing. A lane that is gone or parked has no row.
    """

    pipeline: str
    """The row of each lane in `pipeline_lanes`; the projection's name, or another one while it is rebuilt."""
    projection: Projection
    database_url: str = field(repr=False)

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        began = time.perf_counter()
        arrived = read_arrivals(batches)
        if not arrived:
            return
        folds = transact(self.database_url, lambda connection: self._fold(connection, arrived, began))
        yield pa.RecordBatch.from_pylist([_describe(fold) for fold in folds], schema=FOLDED)

    def _fold(
        self, connection: TaskConnection, arrived: Mapping[LaneName, list[Arrival]], began: float
    ) -> list[LaneFold]:
        store = FoldStore(connection, self.pipeline, self.projection.name)
        positions = store.lock(arrived)
        folds = [LaneFold(self.projection, each, arrived[each.tenant, each.channel]) for each in positions]
        stored = store.load(folds)
        for fold, documents in zip(folds, stored, strict=True):
            fold.fold(documents)
        if _refusal(store, folds):
            for fold, documents in zip(folds, stored, strict=True):
                _write_alone(store, fold, documents)
        store.advance(folds)
        store.charge(folds, time.perf_counter() - began)
        return folds


def _write_alone(store: FoldStore, fold: LaneFold, documents: Mapping[str, Stored]) -> None:
    """Write what PostgreSQL takes of a lane: it is parked at the first event of which it does not."""
    problem = _refusal(store, [fold])
    if problem is None:
        return
    taken, refused = 0, len(fold.applied)
    while refused - taken > 1:
        middle = (taken + refused) // 2
        fold.fold_again(documents, middle, problem)
        found = _refusal(store, [fold], is_trial=True)
        if found is None:
            taken = middle
        else:
            refused, problem = middle, found
    fold.fold_again(documents, taken, problem)
    store.write([fold])


def _refusal(store: FoldStore, folds: list[LaneFold], *, is_trial: bool = False) -> DocumentError | None:
    """Why they could not be written; None: they could."""
    try:
        store.write(folds, is_trial=is_trial)
    except DocumentError as problem:
        return problem
    return None


def _describe(fold: LaneFold) -> dict[str, Any]:
    parking = fold.parking
    return {
        "tenant": fold.position.tenant,
        "channel": fold.position.channel,
        "sequence": fold.sequence,
        "events": len(fold.applied),
        "bytes": sum(arrival.bytes for arrival in fold.applied),
        "parked_sequence": parking and parking.sequence,
        "parked_reason": parking and parking.reason,
        "parked_traceback": parking and parking.traceback,
    }
