"""Follows how a group of workers copes, moment by moment, for whoever decides how many there should be."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from tenantry.subscriptions.roll_reader import Present
from tenantry.subscriptions.scaling import Bounds, Decision, Pace, Sample, decide, measure
from tenantry.subscriptions.spreading import Member


class Group(NamedTuple):
    """Workers that can stand in for each other: of one application, and there for the same tenants."""

    app: str
    tenants: frozenset[str] = frozenset()
    plans: frozenset[str] = frozenset()

    @classmethod
    def of(cls, member: Member) -> Group:
        return cls(member.app, member.tenants, member.plans)


class Gauge:
    def __init__(self, pace: Pace) -> None:
        self._pace = pace
        self._samples: deque[Sample] = deque()

    def note(self, present: Sequence[Present], workers: int | None = None) -> None:
        """`workers`: how many there are, if that is known better than by who is on the roll."""
        at = time.monotonic()
        if workers is None:
            workers = sum(not each.member.is_leaving for each in present)
        self._samples.append(measure(at, workers, [each.readings for each in present]))
        while self._samples[0].at < at - self._pace.remembered_seconds:
            self._samples.popleft()

    def decide(self, bounds: Bounds) -> Decision:
        return decide(list(self._samples), bounds, self._pace)
