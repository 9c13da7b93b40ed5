"""Which lanes are chained: each event names the one before it, and the stream takes none that follows anything else.

A chain keeps the order whatever the broker does, and spares it most answers. Others that publish to the same stream
break it. With them about, it is kept only where a stream may refuse one event and take the next.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from tenantry.tenants.lanes import Lane
from tenantry.tenants.tenant import Tenant

MIXED_SECONDS: Final = 60.0
"""So long is believed that others publish to a lane, too."""
LONGEST_LINK: Final = len("Nats-Expected-Last-Msg-Id: ") + 1024 + 64


class Chains:
    def __init__(self, is_replicated: Callable[[Tenant], bool]) -> None:
        self._is_replicated = is_replicated
        self._mixed_until: dict[int, float] = {}

    def is_chained(self, number: int, lane: Lane, tenant: Tenant) -> bool:
        if lane.is_shared:
            return False
        is_mixed = time.monotonic() < self._mixed_until.get(number, 0.0)
        return not is_mixed or tenant.limits.discard == "new" or self._is_replicated(tenant)

    def note_broken(self, number: int) -> None:
        self._mixed_until[number] = time.monotonic() + MIXED_SECONDS
