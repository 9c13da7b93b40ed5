"""Deficit round robin: in each round a tenant that waits is allotted events by its weight.

Keyed on the tenant: more channels are not a larger share. What is too small a share for one event is saved up.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

HEADROOM: Final = 0.8
MOST_SAVED: Final = 4


class Want(NamedTuple):
    """What somebody who waits may have."""

    weight: float
    most: int
    """In one round."""


class Shares:
    def __init__(self) -> None:
        self._savings: dict[str, float] = {}

    def allot(self, wants: Mapping[str, Want], room: int, blocked: Mapping[str, Want] | None = None) -> dict[str, int]:
        """How many events each may send in this round, of about `room` together; those that have to save get none.

        Those that are `blocked` just now cannot send, but they save, and have it in the rounds that follow.
        """
        able = {tenant: want for tenant, want in wants.items() if want.most > 0}
        if not able or room <= 0:
            return {}
        everybody = able | {tenant: want for tenant, want in (blocked or {}).items() if want.most > 0}
        # Less than what everybody can take: who cannot use its share would fall behind it, and who has fallen behind
        # could not catch up.
        quantum = min(
            room / sum(want.weight for want in able.values()),
            HEADROOM * min(want.most / want.weight for want in everybody.values()),
        )
        # A round in which nobody may send would be for nothing.
        shortage = min((1 - self._savings.get(tenant, 0)) / want.weight for tenant, want in able.items())
        quantum = max(quantum, shortage)
        for tenant, want in everybody.items():
            savings = self._savings.get(tenant, 0) + quantum * want.weight
            self._savings[tenant] = min(savings, MOST_SAVED * want.most)
        # Sums of fractions that should make one event are a hair less now and then.
        quotas = {tenant: min(int(self._savings[tenant] + 1e-9), want.most) for tenant, want in able.items()}
        return {tenant: quota for tenant, quota in quotas.items() if quota > 0}

    def spend(self, tenant: str, cost: float) -> None:
        """It may be more than was allotted: the last event counts whole, however large it is."""
        self._savings[tenant] = self._savings.get(tenant, 0) - cost

    def forget(self, tenant: str) -> None:
        """Who has nothing to send saves nothing up."""
        if self._savings.get(tenant, 0) >= 0:
            self._savings.pop(tenant, None)
