"""Fair admission: deficit round robin, by weight, over the streams that have something to read.

A batch is divided by weight among those that wait. Who wants less than its share leaves the rest to the others. What a
share has of a fraction is carried over to the next batch, so that it comes out even in the long run, also when there is
less room in a batch than there are streams.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import accumulate
from math import ceil
from typing import NamedTuple


class Want(NamedTuple):
    """How much somebody could take, and its weight."""

    pending: int
    weight: float
    most: float = 1.0
    """What part of the room it may have at most."""


class Shares:
    """Divides the room of each batch, and remembers the fractions."""

    def __init__(self) -> None:
        self._credit: dict[str, float] = {}

    def divide(self, wants: Mapping[str, Want], room: int) -> dict[str, int]:
        """What each gets; together `room`, or all that is wanted if that is less."""
        waiting = {key: want for key, want in wants.items() if want.pending > 0}
        granted: dict[str, int] = {}
        # Those who want least for their weight come first: what they leave makes the others' share larger.
        by_hunger = sorted(waiting, key=lambda key: waiting[key].pending / waiting[key].weight)
        left = [*accumulate(waiting[key].weight for key in reversed(by_hunger))][::-1]
        for key, weight in zip(by_hunger, left, strict=True):
            want = waiting[key]
            if want.pending > room * want.weight / weight:
                break
            granted[key] = want.pending
            room -= want.pending
            del waiting[key]
        # Who has nothing left waiting saves nothing up.
        self._credit = {key: self._credit.get(key, 0.0) for key in waiting}
        if waiting:
            granted |= self._divide_among_hungry(waiting, room)
        return granted

    def _divide_among_hungry(self, waiting: Mapping[str, Want], room: int) -> dict[str, int]:
        portion = room / sum(want.weight for want in waiting.values())
        for key, want in waiting.items():
            self._credit[key] += portion * want.weight
        granted = {key: min(want.pending, max(0, int(self._credit[key]))) for key, want in waiting.items()}
        left = room - sum(granted.values())
        # Those who are owed most get the rest one by one; or give it back, after batches that were smaller.
        by_credit = sorted(waiting, key=lambda key: granted[key] - self._credit[key])
        while left > 0:
            for key in by_credit:
                if left > 0 and granted[key] < waiting[key].pending:
                    granted[key] += 1
                    left -= 1
        while left < 0:
            for key in reversed(by_credit):
                if left < 0 and granted[key] > 0:
                    granted[key] -= 1
                    left += 1
        for key, amount in granted.items():
            self._credit[key] -= amount
        return granted


class FairAdmission:
    """Two rounds: the batch among groups, then each group's part among its streams."""

    def __init__(self) -> None:
        self._groups = Shares()
        self._members: dict[str, Shares] = {}

    def divide(self, wants: Mapping[str, Want], groups: Mapping[str, str], room: int) -> dict[str, int]:
        """What each stream gets. Those that `groups` does not name stand for themselves."""
        members: dict[str, dict[str, Want]] = {}
        for key, want in wants.items():
            group = groups.get(key)
            members.setdefault(f"group {group}" if group else f"stream {key}", {})[key] = want
        parts = self._groups.divide({group: _together(inside, room) for group, inside in members.items()}, room)
        self._members = {group: self._members.get(group) or Shares() for group in members if len(members[group]) > 1}
        granted: dict[str, int] = {}
        for group, part in parts.items():
            inside = members[group]
            granted |= self._members[group].divide(inside, part) if len(inside) > 1 else {next(iter(inside)): part}
        return granted


def _together(wants: Mapping[str, Want], room: int) -> Want:
    pending = sum(want.pending for want in wants.values())
    most = ceil(max(want.most for want in wants.values()) * room)
    return Want(min(pending, most), max(want.weight for want in wants.values()))
