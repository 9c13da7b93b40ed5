"""Credentials of tenants' users: issued, listed, revoked. Seeds are handed out once and kept nowhere."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from itertools import chain
from typing import Any, Final
from uuid import UUID

import msgspec

from nats_bulk import Credentials
from tenantry.errors import TenantNotFound
from tenantry.nats import claims
from tenantry.nats.claims import UNLIMITED, Permission, UserPermissions
from tenantry.postgres.pool import Pool
from tenantry.postgres.queries import Connection, SqlFolder
from tenantry.tenants.lanes import Lane, Lanes, at_tier
from tenantry.tenants.tenant import Tenant, Tier

INBOXES: Final = "_INBOX.>"
SUBSCRIPTIONS: Final = 1000
"""Of one connection: each costs the server time with every event that it matches."""

_sql = SqlFolder("tenantry.tenants")


class Kind(StrEnum):
    """What a credential is for."""

    CLIENT = "client"
    """Publish, where the tier allows it, and read back."""
    PUBLISH = "publish"
    READ = "read"
    LEAF = "leaf"
    """A leaf node, which publishes for whatever is connected to it."""


class Credential(msgspec.Struct, frozen=True, kw_only=True):
    """A user that was issued for a tenant. What it can be recognised by, not what it can be used with."""

    id: UUID
    tenant_id: str
    name: str
    kind: Kind
    consumer: str | None
    channel: str | None
    user_key: str
    issued_at: datetime
    expires_at: datetime | None
    revoked_at: datetime | None

    def is_expired(self, now: datetime) -> bool:
        return self.expires_at is not None and self.expires_at < now

    def grants_consumer_of(self, channel: str) -> bool:
        """Whether it lets its user fetch from a durable consumer on the channel."""
        return self.consumer is not None and self.channel == channel and self.revoked_at is None

    def describe(self) -> dict[str, Any]:
        document: dict[str, Any] = msgspec.to_builtins(self)
        return document


class CredentialStore:
    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    async def of(self, tenant: str, connection: Connection | None = None) -> list[Credential]:
        if connection is None:
            async with self._pool.connection() as own:
                return await self.of(tenant, own)
        return [_credential(row) for row in await _sql.fetch_all(connection, "credentials", {"tenant_id": tenant})]

    async def insert(self, connection: Connection, tenant: str, row: dict[str, Any]) -> Credential:
        inserted = await _sql.fetch_one(connection, "insert_credential", row | {"tenant_id": tenant})
        assert inserted is not None
        return _credential(inserted)

    async def revoke(self, connection: Connection, tenant: str, id: UUID) -> Credential:
        row = await _sql.fetch_one(connection, "revoke_credential", {"tenant_id": tenant, "id": id})
        if row is None:
            raise TenantNotFound(f"tenant {tenant} has no credential {id} that could be revoked")
        return _credential(row)


def issue(
    lanes: Lanes, tenant: Tenant, name: str, kind: Kind, *, consumer: tuple[str, str] | None, lifetime: float | None
) -> Credentials:
    """A new user in the tenant's account; `consumer` is a channel and the service whose events it may fetch."""
    return claims.issue_user(
        lanes.account_key(tenant), name, permissions=_permissions(lanes, tenant, kind, consumer), lifetime=lifetime
    )


def consumer_subjects(lane: Lane, service: str) -> list[str]:
    """Where a service fetches and acknowledges."""
    name = lane.consumer_name(service)
    return [f"$JS.API.CONSUMER.MSG.NEXT.{lane.stream}.{name}", f"$JS.ACK.{lane.stream}.{name}.>"]


def _permissions(lanes: Lanes, tenant: Tenant, kind: Kind, consumer: tuple[str, str] | None) -> UserPermissions:
    """Exactly the tenant's subjects, and those that they will have at the next tiers: credentials survive a move."""
    own = lanes.lanes(tenant) + lanes.lanes(at_tier(tenant, Tier.STREAM))
    everything = f"{lanes.prefix(tenant)}.>"
    publish: list[str] = [] if kind == Kind.READ else [everything]
    subscribe = [INBOXES]
    if kind in (Kind.CLIENT, Kind.READ):
        subscribe.append(everything)
        publish += dict.fromkeys(chain.from_iterable(lane.direct_get() for lane in own))
    if consumer is not None:
        channel, service = consumer
        lanes_of_it = [lane for lane in own if lane.channel == channel]
        publish += dict.fromkeys(chain.from_iterable(consumer_subjects(lane, service) for lane in lanes_of_it))
        # Clients like to ask first; in an account without streams of its own the answer is that there are none.
        publish += {f"$JS.API.CONSUMER.INFO.{lane.stream}.{lane.consumer_name(service)}" for lane in lanes_of_it}
    return UserPermissions(
        pub=Permission(allow=publish),
        sub=Permission(allow=subscribe),
        subs=UNLIMITED if kind == Kind.LEAF else SUBSCRIPTIONS,
        payload=tenant.limits.payload,
        allowed_connection_types=["LEAFNODE"] if kind == Kind.LEAF else ["STANDARD", "WEBSOCKET"],
    )


def _credential(row: dict[str, Any]) -> Credential:
    return Credential(**row | {"kind": Kind(row["kind"])})
