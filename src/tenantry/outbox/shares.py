"""Deficit round robin: in each round a tenant that waits is allotted events by its weight.

Keyed on the tenant: more channels are not a larger share. What is too small a share for one event is saved up.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class Want(NamedTuple):
    """What somebody who waits may have."""

    weight: float
    most: int
    """In one round."""


class Shares:
    def __init__(self) -> None:
        self._savings: dict[str, float] = {}

    def allot(self, wants: Mapping[str, Want], room: int) -> dict[str, int]:
        """How many events each may send in this round, of about `room` together; those that have to save get none."""
        able = {tenant: want for tenant, want in wants.items() if want.most > 0}
        if not able or room <= 0:
            return {}
        # No more than what everybody can take: who cannot use its share would fall behind it.
        quantum = min(
            room / sum(want.weight for want in able.values()),
            min(want.most / want.weight for want in able.values()),
        )
        # A round in which nobody may send would be for nothing.
        shortage = min((1 - self._savings.get(tenant, 0)) / want.weight for tenant, want in able.items())
        quantum = max(quantum, shortage)
        allotted: dict[str, int] = {}
        for tenant, want in able.items():
            self._savings[tenant] = savings = min(self._savings.get(tenant, 0) + quantum * want.weight, 2.0 * want.most)
            if savings >= 1:
                allotted[tenant] = min(int(savings), want.most)
        return allotted

    def spend(self, tenant: str, cost: float) -> None:
        """It may be more than was allotted: the last event counts whole, however large it is."""
        self._savings[tenant] = self._savings.get(tenant, 0) - cost

    def forget(self, tenant: str) -> None:
        """Who has nothing to send saves nothing up."""
        if self._savings.get(tenant, 0) >= 0:
            self._savings.pop(tenant, None)
