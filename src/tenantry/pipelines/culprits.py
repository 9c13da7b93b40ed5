"""Finds whose events a pipeline fails on, when it fails on a batch: by halves, so that it takes few tries."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, Generic, TypeVar

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from tenantry.pipelines.keys import LaneName

CANNOT_BE_READ: Final = "cannot be read: "
"""What the source says of a stream that does not answer: no lane's events are at fault."""
MOST_CULPRITS: Final = 16

Result = TypeVar("Result")
Work = Callable[[DataFrame], Result]


class Tried(Generic[Result]):
    """What became of the lanes of a batch."""

    def __init__(self) -> None:
        self.results: list[Result] = []
        self.failed: dict[LaneName, Exception] = {}


def try_lanes(events: DataFrame, lanes: Sequence[LaneName], work: Work[Result]) -> Tried[Result]:
    """Do the work for all lanes at once; if that fails, for each half of them, until those are found that fail."""
    tried: Tried[Result] = Tried()
    _try(events, lanes, work, tried, is_whole=True)
    return tried


def _try(
    events: DataFrame, lanes: Sequence[LaneName], work: Work[Result], tried: Tried[Result], *, is_whole: bool
) -> None:
    part = events if is_whole else events.where(F.col("lane").isin([str(lane) for lane in lanes]))
    try:
        tried.results.append(work(part))
    except Exception as problem:
        if CANNOT_BE_READ in str(problem):
            raise
        if len(lanes) == 1:
            tried.failed[lanes[0]] = problem
            if len(tried.failed) > MOST_CULPRITS:
                # So many are not at fault, each by itself.
                raise
            return
        half = len(lanes) // 2
        for some in (lanes[:half], lanes[half:]):
            if some:
                _try(events, some, work, tried, is_whole=False)


def find_sequence(events: DataFrame, first: int, last: int, fails: Callable[[DataFrame], bool]) -> int:
    """The first event of a lane without which all before it would go well; it is known to fail up to `last`."""
    low, high = first, last
    while low < high:
        middle = (low + high) // 2
        if fails(events.where(F.col("sequence") <= middle)):
            high = middle
        else:
            low = middle + 1
    return low
