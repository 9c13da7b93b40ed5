"""What is in the outbox: what waits and why, and what has become of each event."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Final, Literal

import msgspec

from tenantry.errors import TenantNotFound
from tenantry.postgres.queries import Connection, SqlFolder

MOST_COUNTED: Final = 100_000

State = Literal["pending", "published", "failed"]

_sql = SqlFolder("tenantry.outbox")


class LaneStatus(msgspec.Struct, frozen=True):
    tenant_id: str
    channel: str
    is_open: bool
    """Whether it takes new events."""
    pending: int
    is_more: bool
    """Whether there are more than were counted."""
    oldest: datetime | None
    """When the first of them was emitted."""
    attempts: int
    """How often the first of them was tried in vain."""
    retry_at: datetime | None
    last_error: str
    reason: str
    """Why they wait, as far as is known."""
    dead_letters: int


class Holder(msgspec.Struct, frozen=True):
    """A transaction that has emitted and is still open. What was emitted after it to its lanes has to wait for it."""

    pid: int | None
    """The process of PostgreSQL; none: a prepared transaction."""
    application_name: str | None
    role: str | None
    state: str | None
    began_at: datetime | None
    holds_every_lane: bool
    lanes: list[str]


class Partition(msgspec.Struct, frozen=True):
    name: str
    starts_at: datetime | None
    """None: for what fits nowhere else."""
    ends_at: datetime | None
    bytes: int


class OutboxStatus(msgspec.Struct, frozen=True):
    lanes: list[LaneStatus]
    holders: list[Holder]
    partitions: list[Partition]
    relays: int

    @property
    def pending(self) -> int:
        return sum(lane.pending for lane in self.lanes)

    @property
    def is_more(self) -> bool:
        return any(lane.is_more for lane in self.lanes)

    @property
    def dead_letters(self) -> int:
        return sum(lane.dead_letters for lane in self.lanes)

    @property
    def oldest(self) -> datetime | None:
        return min((lane.oldest for lane in self.lanes if lane.oldest), default=None)


class EventStatus(msgspec.Struct, frozen=True):
    id: str
    channel: str
    type: str
    state: State
    created_at: datetime
    published_at: datetime | None
    attempts: int
    last_error: str | None
    traceparent: str
    size: int


async def read_status(connection: Connection, tenant: str | None = None) -> OutboxStatus:
    wanted = {"tenant": tenant, "most": MOST_COUNTED}
    lanes = await _sql.fetch_all(connection, "status_lanes", wanted)
    if tenant is not None and not lanes:
        raise _not_found(tenant)
    relays = await _sql.fetch_one(connection, "count_relays")
    return msgspec.convert(
        {
            "lanes": lanes,
            "holders": await _sql.fetch_all(connection, "status_holders", wanted),
            "partitions": await _sql.fetch_all(connection, "status_partitions"),
            "relays": relays["relays"] if relays else 0,
        },
        OutboxStatus,
    )


async def list_events(connection: Connection, tenant: str, state: State | None, limit: int) -> list[EventStatus]:
    """The newest first."""
    wanted: dict[str, Any] = {"tenant": tenant, "state": state, "limit": limit}
    rows = await _sql.fetch_all(connection, "list_events", wanted)
    if not rows and not await _sql.fetch_all(connection, "status_lanes", {"tenant": tenant, "most": 0}):
        raise _not_found(tenant)
    return msgspec.convert(rows, list[EventStatus])


def _not_found(tenant: str) -> TenantNotFound:
    return TenantNotFound(
        f"the outbox knows no tenant {tenant!r}; `tenantry tenant list` shows who there is. An outbox in a database of "
        "its own learns of tenants from a running relay"
    )
