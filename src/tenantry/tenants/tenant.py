"""A tenant, as the registry knows it: what is wanted of it, and whether the servers have it."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Any, Final
from uuid import UUID

import msgspec

from tenantry.errors import TenantConflict
from tenantry.tenants.plans import Limits

DEFAULT_CHANNELS: Final = ("events", "properties")


class Tier(StrEnum):
    """How a tenant is kept apart from the others, the least first."""

    POOLED = "pooled"
    STREAM = "stream"
    ACCOUNT = "account"

    def is_above(self, other: Tier) -> bool:
        return list(Tier).index(self) > list(Tier).index(other)


class Status(StrEnum):
    ACTIVE = "active"
    SUSPENDED = "suspended"
    DELETING = "deleting"


class Placement(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Where a tenant's data may lie."""

    cluster: str = ""
    """The NATS cluster that holds its streams."""
    tags: tuple[str, ...] = ()
    """Tags that a NATS server must have to hold its streams."""
    lake: str = ""
    """Where its tables are kept."""


class Channel(msgspec.Struct, frozen=True, kw_only=True):
    """A kind of data with a retention of its own."""

    name: str
    retention: int | None = None
    """Seconds; none: as the plan says."""
    pool: int | None = None
    """The shared stream that holds it, in the pooled tier."""
    removing: bool = False

    def in_pool(self, number: int | None) -> Channel:
        return msgspec.structs.replace(self, pool=number)


class Tenant(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    uid: UUID
    name: str
    plan: str
    tier: Tier
    status: Status
    status_since: datetime
    overrides: dict[str, Any]
    placement: Placement
    channels: tuple[Channel, ...]
    limits: Limits
    revision: int
    provisioned: int
    problem: str
    created_at: datetime
    updated_at: datetime

    @property
    def is_ready(self) -> bool:
        """Whether the servers have all that is wanted."""
        return self.provisioned >= self.revision

    def require_active(self) -> None:
        if self.status != Status.ACTIVE:
            raise TenantConflict(f"tenant {self.id} is {self.status}; resume it first")

    def channel(self, name: str) -> Channel | None:
        return next((each for each in self.channels if each.name == name and not each.removing), None)

    def retention_of(self, channel: Channel) -> int:
        return channel.retention or self.limits.retention_of(channel.name)

    def describe(self) -> dict[str, Any]:
        """What a person or a program is shown. It holds no secret."""
        return {
            "id": self.id,
            "name": self.name,
            "plan": self.plan,
            "tier": self.tier,
            "status": self.status,
            "ready": self.is_ready,
            "problem": self.problem,
            "channels": {
                each.name: {"retention": self.retention_of(each)} for each in self.channels if not each.removing
            },
            "placement": msgspec.to_builtins(self.placement),
            "overrides": self.overrides,
            "limits": msgspec.to_builtins(self.limits),
            "created_at": self.created_at.isoformat(),
            "updated_at": self.updated_at.isoformat(),
        }
