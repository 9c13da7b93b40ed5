"""What a task reads: some ranges of some streams, and how to reach them. Pickled by the driver, never shown."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import NamedTuple

from pyspark.sql.datasource import InputPartition

from pyspark_nats.access import Access
from pyspark_nats.layout import Cut, Ranges, cut, lay_out, worthwhile_tasks
from pyspark_nats.selection import Selection


class Range(NamedTuple):
    key: str
    stream: str
    access: int
    """Its place in the task's list."""
    first: int
    last: int
    subjects: tuple[str, ...] = ()
    excluding: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, repr=False)
class Task(InputPartition):
    accesses: tuple[Access, ...]
    ranges: tuple[Range, ...]

    def __repr__(self) -> str:
        return f"Task({len(self.ranges)} ranges)"


def plan_cuts(ranges: Ranges, selection: Selection, tasks: int | None, *, order: bool) -> list[Cut]:
    """Where tasks begin, by the bytes that the streams have now."""
    sizes = {key: state.bytes_each for key, state in selection.states.items()}
    count = tasks or worthwhile_tasks(ranges, sizes, _cores())
    return cut(ranges, sizes, count, split=not order)


def plan_tasks(ranges: Ranges, cuts: list[Cut], selection: Selection) -> list[Task]:
    return [_task(part, selection) for part in lay_out(ranges, cuts)]


def _task(ranges: Ranges, selection: Selection) -> Task:
    accesses: dict[Access, int] = {}
    planned = []
    for key, (first, last) in ranges.items():
        stream = selection.stream_of(key)
        assert stream is not None, "what the catalog does not know any more is not planned"
        access = selection.access_to(stream)
        place = accesses.setdefault(access, len(accesses))
        planned.append(Range(key, stream.name, place, first, last, stream.subjects, stream.excluding))
    return Task(tuple(accesses), tuple(planned))


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
