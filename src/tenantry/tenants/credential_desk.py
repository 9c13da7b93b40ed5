"""Credentials of tenants: issued, rotated and revoked, each act on record with its actor."""

from __future__ import annotations

from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Final
from uuid import UUID

from nats_bulk import Credentials
from tenantry.errors import ProvisioningFailed, TenantConflict, TenantInvalid, TenantNotFound
from tenantry.nats.claims import read as read_claims
from tenantry.postgres.queries import Connection
from tenantry.tenants.audit import AuditLog
from tenantry.tenants.backbone import Backbone
from tenantry.tenants.credentials import Credential, CredentialStore, Kind, issue
from tenantry.tenants.lanes import Lanes
from tenantry.tenants.provisioner import Provisioner
from tenantry.tenants.registry import Registry
from tenantry.tenants.spec import read_kind, require_text, require_valid
from tenantry.tenants.tenant import Tenant

SHORTEST_LIFETIME: Final = 1.0
MOST_CREDENTIALS: Final = 1000


class CredentialDesk:
    def __init__(
        self,
        registry: Registry,
        store: CredentialStore,
        audit: AuditLog,
        lanes: Lanes,
        backbone: Backbone,
        provisioner: Provisioner,
    ) -> None:
        self._registry = registry
        self._store = store
        self._audit = audit
        self._lanes = lanes
        self._backbone = backbone
        self._provisioner = provisioner

    async def of(self, tenant: str) -> list[Credential]:
        """All that were issued for a tenant and have not been erased with it."""
        return await self._store.of(tenant)

    async def issue(
        self,
        tenant: str,
        actor: str,
        *,
        name: str = "default",
        kind: str = Kind.CLIENT,
        consumer: str | None = None,
        channel: str = "events",
        lifetime: float | None = None,
    ) -> tuple[Credential, Credentials]:
        """A new user for the tenant. The second part is the secret: it is kept nowhere and cannot be had again."""
        self._backbone.require_accounts()
        wanted = read_kind(kind)
        require_text("name", name)
        if lifetime is not None and lifetime < SHORTEST_LIFETIME:
            raise TenantInvalid("lifetime", f"expected lifetime to be at least a second, got: {lifetime}")
        async with self._registry.change(tenant) as connection:
            found = await self._registry.get(tenant, connection)
            found.require_active()
            if wanted == Kind.PUBLISH:
                self._lanes.require_publishable(found)
            if wanted == Kind.LEAF:
                self._lanes.require_leaf(found)
            await self._require_few_credentials(connection, found)
            if consumer is not None:
                await self._require_consumer(connection, found, consumer, channel)
            secret = issue(
                self._lanes,
                found,
                name,
                wanted,
                consumer=(channel, consumer) if consumer else None,
                lifetime=lifetime,
            )
            row = {
                "name": name,
                "kind": wanted,
                "consumer": consumer,
                "channel": channel if consumer else None,
                "user_key": read_claims(secret.jwt)["sub"],
                "expires_at": datetime.now(UTC) + timedelta(seconds=lifetime) if lifetime else None,
            }
            credential = await self._store.insert(connection, tenant, row)
            if consumer:
                await self._registry.touch(connection, tenant)
            await self._audit.append(connection, actor, "credential.issue", tenant, after=credential.describe())
        # The secret is to be had only now; what the servers still lack for it, they get later.
        with suppress(ProvisioningFailed):
            await self._provisioner.converge(tenant)
        return credential, secret

    async def revoke(self, tenant: str, id: UUID, actor: str) -> Credential:
        """Lock its user out, at once and for good."""
        async with self._registry.change(tenant) as connection:
            await self._registry.get(tenant, connection)
            credential = await self._store.revoke(connection, tenant, id)
            await self._registry.touch(connection, tenant)
            await self._audit.append(connection, actor, "credential.revoke", tenant, after=credential.describe())
        await self._provisioner.converge(tenant)
        return credential

    async def rotate(
        self, tenant: str, id: UUID, actor: str, *, keep_old: bool = False
    ) -> tuple[Credential, Credentials]:
        """A new credential of the same kind; the old one is revoked, unless it is to be revoked later."""
        old = next((each for each in await self._store.of(tenant) if each.id == id), None)
        if old is None or old.revoked_at:
            raise TenantNotFound(f"tenant {tenant} has no credential {id} that is still valid")
        lifetime = (old.expires_at - old.issued_at).total_seconds() if old.expires_at else None
        new = await self.issue(
            tenant,
            actor,
            name=old.name,
            kind=old.kind,
            consumer=old.consumer,
            channel=old.channel or "events",
            lifetime=lifetime,
        )
        if not keep_old:
            with suppress(ProvisioningFailed):
                await self.revoke(tenant, id, actor)
        return new

    async def _require_few_credentials(self, connection: Connection, tenant: Tenant) -> None:
        """The account's claims list those that are locked out, and must fit into a message when all of them are."""
        now = datetime.now(UTC)
        held = [each for each in await self._store.of(tenant.id, connection) if not each.is_expired(now)]
        if len(held) >= MOST_CREDENTIALS:
            raise TenantConflict(
                f"tenant {tenant.id} has {len(held):,} credentials that have not expired, revoked ones among them, and "
                "can have no more; give credentials a lifetime, and they drop off"
            )

    async def _require_consumer(self, connection: Connection, tenant: Tenant, consumer: str, channel: str) -> None:
        require_valid("channel", consumer, "consumer", "consumer")
        if tenant.channel(channel) is None:
            raise TenantInvalid("channel", f"tenant {tenant.id} has no channel {channel!r}")
        held = await self._store.of(tenant.id, connection)
        have = {(each.channel, each.consumer) for each in held if each.consumer and not each.revoked_at}
        if len(have | {(channel, consumer)}) > tenant.limits.consumers:
            raise TenantConflict(
                f"tenant {tenant.id} has {len(have)} consumers and its plan allows {tenant.limits.consumers}; "
                "revoke the credentials of one, or raise its limit"
            )
