"""How a batch is laid out in tasks: streams in the order of their names, cut where the bytes come out even.

A few cuts describe it, so it fits into the offset, and a batch that is read again has the same rows in the same tasks.
A stream is whole in one task, unless order does not matter.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil
from typing import Final

WORTH_A_TASK: Final = 256 << 10

Ranges = dict[str, tuple[int, int]]
Cut = tuple[str, int]


def cut(ranges: Ranges, sizes: Mapping[str, float], tasks: int, *, split: bool) -> list[Cut]:
    """Where the second and each further task begins; `sizes` holds the bytes of one message of each stream."""
    left = sum((last - first + 1) * sizes.get(key, 1.0) for key, (first, last) in ranges.items())
    cuts: list[Cut] = []
    filled = 0.0
    for key, (first, last) in ranges.items():
        size, position = sizes.get(key, 1.0), first
        while len(cuts) < tasks - 1:
            portion = left / (tasks - len(cuts))
            if split:
                fits = max(0, ceil((portion - filled) / size))
                if position + fits > last:
                    break
            else:
                fits = 0
                # Behind this stream, if that is nearer to an even portion than before it.
                if not filled or filled + (last - first + 1) * size / 2 <= portion:
                    break
            left -= filled + fits * size
            filled = 0.0
            position += fits
            cuts.append((key, position))
        filled += (last - position + 1) * size
    return cuts


def worthwhile_tasks(ranges: Ranges, sizes: Mapping[str, float], most: int) -> int:
    """A task has a price of its own: little work is done by few."""
    total = sum((last - first + 1) * sizes.get(key, 1.0) for key, (first, last) in ranges.items())
    return max(1, min(most, ceil(total / WORTH_A_TASK)))


def lay_out(ranges: Ranges, cuts: list[Cut]) -> list[Ranges]:
    """The ranges of each task; none is empty."""
    tasks: list[Ranges] = [{}]
    rest = list(cuts)
    for key, (first, last) in ranges.items():
        position = first
        while rest and rest[0] <= (key, position):
            rest.pop(0)
            tasks.append({})
        while rest and rest[0][0] == key and rest[0][1] <= last:
            tasks[-1][key] = position, rest[0][1] - 1
            position = rest.pop(0)[1]
            tasks.append({})
        tasks[-1][key] = position, last
    return [task for task in tasks if task]
