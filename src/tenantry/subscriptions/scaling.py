"""How many workers there should be: decided by what they told of themselves, and by nothing else.

    workers = (lag / drain target + arrivals / utilisation) * seconds that one worker takes for an event

More are wanted at once, and at most twice as many as there are; less only when less was enough for a while.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final, NamedTuple

MEASURED_SECONDS: Final = 10.0
"""So far back goes what rates and costs are taken from."""
REMEMBERED_SECONDS: Final = 60.0
"""For so long it is known what an event costs, though none was handled since."""
UTILISATION: Final = 0.8
IDLE_CPU: Final = 0.2
"""A process that does less is not held up by its processor, and most of what it uses is not for events."""

_ALMOST_NOTHING: Final = 1e-9


@dataclass(frozen=True, slots=True)
class Bounds:
    least: int = 1
    most: int = 1

    def clamp(self, count: int) -> int:
        return max(self.least, min(self.most, count))


@dataclass(frozen=True, slots=True)
class Pace:
    drain_seconds: float = 10.0
    """In such a time what waits should have been handled."""
    patience_seconds: float = 30.0
    """For so long fewer must have been enough before one goes."""
    look_seconds: float = 1.0

    @property
    def remembered_seconds(self) -> float:
        return max(REMEMBERED_SECONDS, 2 * self.patience_seconds)


class Reading(NamedTuple):
    """What a worker told of itself at some moment; the last three count from its start."""

    at: float
    partitions: int = 0
    behind: int | None = None
    """Partitions of which something waits."""
    slots: int = 1
    running: int = 0
    lag: int = 0
    handled: int = 0
    busy_seconds: float = 0.0
    cpu_seconds: float = 0.0

    @classmethod
    def of(cls, at: float, load: Mapping[str, Any]) -> Reading:
        return cls(at, **{name: load[name] for name in cls._fields if name in load})

    def is_before(self, later: Reading) -> bool:
        """Whether what was counted went on: a worker that starts again, or gives a tenant away, may count anew."""
        return (
            later.at > self.at
            and later.handled >= self.handled
            and later.busy_seconds >= self.busy_seconds
            and later.cpu_seconds >= self.cpu_seconds
        )


class Sample(NamedTuple):
    """All workers together, at some moment."""

    at: float
    workers: int
    lag: int = 0
    partitions: int = 0
    behind: int = 0
    running: int = 0
    events_per_second: float = 0.0
    """Handled."""
    arrivals_per_second: float = 0.0
    seconds_per_event: float | None = None
    """What one worker takes, all its slots counted; None: nothing was handled lately."""


class Decision(NamedTuple):
    wanted: int
    workers: int
    lag: int
    events_per_second: float
    seconds_per_event: float | None


def measure(at: float, workers: int, history: Iterable[Sequence[Reading]]) -> Sample:
    """What the readings of each worker, the oldest first, say together."""
    told = [readings for readings in history if readings]
    tallies = [_tally(readings, at - MEASURED_SECONDS) for readings in told]
    handled = sum(tally.handled for tally in tallies)
    handled_busily = sum(tally.handled_busily for tally in tallies)
    cost = None
    if handled:
        by_slots = sum(tally.slot_seconds for tally in tallies) / handled
        by_cpu = sum(tally.cpu_seconds for tally in tallies) / handled_busily if handled_busily else 0.0
        cost = max(by_slots, by_cpu)
    return Sample(
        at,
        workers,
        lag=sum(readings[-1].lag for readings in told),
        partitions=sum(readings[-1].partitions for readings in told),
        behind=sum(_behind(readings[-1]) for readings in told),
        running=sum(readings[-1].running for readings in told),
        events_per_second=sum(tally.handled / tally.seconds for tally in tallies if tally.seconds),
        arrivals_per_second=sum(max(tally.came, 0) / tally.settled for tally in tallies if tally.settled),
        seconds_per_event=cost,
    )


@dataclass(slots=True)
class _Tally:
    """What one worker did."""

    handled: int = 0
    seconds: float = 0.0
    slot_seconds: float = 0.0
    handled_busily: int = 0
    cpu_seconds: float = 0.0
    came: int = 0
    settled: float = 0.0


def _tally(readings: Sequence[Reading], since: float) -> _Tally:
    tally = _Tally()
    for before, after in pairwise(each for each in readings if each.at >= since):
        if not before.is_before(after):
            continue
        handled, seconds = after.handled - before.handled, after.at - before.at
        cpu_seconds = after.cpu_seconds - before.cpu_seconds
        tally.handled += handled
        tally.seconds += seconds
        tally.slot_seconds += (after.busy_seconds - before.busy_seconds) / max(after.slots, 1)
        if cpu_seconds > IDLE_CPU * seconds:
            tally.cpu_seconds += cpu_seconds
            tally.handled_busily += handled
        if before.partitions == after.partitions:
            # Lag that came with a tenant from another worker is no arrival.
            tally.came += handled + after.lag - before.lag
            tally.settled += seconds
    return tally


def decide(samples: Sequence[Sample], bounds: Bounds, pace: Pace | None = None) -> Decision:
    """By samples, the oldest first."""
    pace = pace or Pace()
    if not samples:
        return Decision(bounds.least, 0, 0, 0.0, None)
    needs, cost = [], None
    for sample in samples:
        cost = cost if sample.seconds_per_event is None else sample.seconds_per_event
        needs.append(_need(sample, cost, pace))
    newest, need = samples[-1], needs[-1]
    wanted = newest.workers
    if need > newest.workers:
        wanted = min(need, max(2 * newest.workers, 1))
    elif _is_idle_for_long(samples, needs, pace):
        wanted -= 1
    return Decision(bounds.clamp(wanted), newest.workers, newest.lag, newest.events_per_second, cost)


def _behind(reading: Reading) -> int:
    return reading.partitions if reading.behind is None else reading.behind


def _need(sample: Sample, cost: float | None, pace: Pace) -> int:
    # A partition is one worker's: no more workers can help with what waits of it, and with all of them.
    if cost is None:
        # Nobody knows yet what an event costs. If none is being handled, more workers would not help.
        need = min(sample.workers + 1, sample.behind) if sample.running else 0
    else:
        catching_up = min(cost * sample.lag / pace.drain_seconds, sample.behind)
        keeping_up = cost * sample.arrivals_per_second / UTILISATION
        need = math.ceil(catching_up + keeping_up - _ALMOST_NOTHING)
    return min(need, max(sample.partitions, 1))


def _is_idle_for_long(samples: Sequence[Sample], needs: Sequence[int], pace: Pace) -> bool:
    """Whether fewer would have been enough all the time, and nobody came or went meanwhile."""
    newest = samples[-1]
    since = newest.at - pace.patience_seconds
    if samples[0].at > since:
        return False
    recent = [(sample, need) for sample, need in zip(samples, needs, strict=True) if sample.at >= since]
    return all(sample.workers == newest.workers and need < newest.workers for sample, need in recent)
