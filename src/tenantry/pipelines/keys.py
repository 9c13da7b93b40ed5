"""What the source calls that which it reads: `acme/events@3.8f14e45f`, or `POOL_0` for all lanes of a shared stream.

The number counts how often reading has begun anew. With another key a query begins where it is told to, whatever its
checkpoint says of the key before; so a lane can be parked and resumed, moved to another stream, or to another query.
"""

from __future__ import annotations

from typing import Final, NamedTuple
from uuid import UUID

from tenantry.tenants.lanes import pool_name

POOL_PREFIX: Final = pool_name(None).removesuffix("None")


class LaneName(NamedTuple):
    """A tenant's channel."""

    tenant: str
    channel: str

    def __str__(self) -> str:
        return f"{self.tenant}/{self.channel}"


def key_of(lane: LaneName, id: UUID, epoch: int) -> str:
    """A channel that is removed and added again is another lane, which a query must not take for the one before."""
    return f"{lane}@{epoch}.{id.hex[:8]}"


def lane_of(key: str) -> LaneName | None:
    """The one lane that is read under this key; none for a shared stream."""
    if key.startswith(POOL_PREFIX):
        return None
    tenant, _, channel = key.partition("@")[0].partition("/")
    return LaneName(tenant, channel)
