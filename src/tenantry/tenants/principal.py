"""Who asks, and what they may do: a principal has scopes and is bound to one tenant, or to none."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec

from tenantry.errors import NotAllowed, TenantInvalid, TenantNotFound

EVERYTHING: Final = "*"
SCOPES: Final = {
    "tenants:read": "see tenants, their channels and moves",
    "tenants:write": "create, change, suspend, resume, move and delete tenants",
    "credentials:read": "see which NATS credentials a tenant has",
    "credentials:write": "issue, rotate and revoke NATS credentials",
    "events:write": "send events",
    "schemas:read": "see the schemas of a tenant's events",
    "schemas:write": "set and delete the schemas of a tenant's events",
    "endpoints:read": "see the endpoints that a tenant's events are pushed to",
    "endpoints:write": "create, change, rotate and delete endpoints, and see their secrets",
    "documents:read": "read the documents that projections keep of a tenant",
    "subscriptions:read": "see the services that handle events, how far they are, and their redrives and replays",
    "subscriptions:write": "pause and resume services for a tenant, give them events again, and cancel that",
    "dead-letters:read": "see the events that could not be handled, with their payloads",
    "dead-letters:write": "have events that could not be handled handled again, and discard them",
    "plans:read": "see plans",
    "plans:write": "create, change and delete plans",
    "workers:read": "see workers and how they cope, and those that tenants have to themselves",
    "workers:write": "start and stop workers for single tenants",
    "keys:write": "see, create and revoke API keys, with no more scopes than one has",
    "audit:read": "read and verify the audit log",
    EVERYTHING: "all of these",
}
TENANT_SCOPES: Final = frozenset(
    {
        "tenants:read",
        "credentials:read",
        "credentials:write",
        "events:write",
        "schemas:read",
        "schemas:write",
        "endpoints:read",
        "endpoints:write",
        "documents:read",
        "subscriptions:read",
        "dead-letters:read",
        "dead-letters:write",
    }
)
"""What somebody who is bound to a tenant can do at all, and then to that tenant only."""


class Principal(msgspec.Struct, frozen=True, kw_only=True):
    actor: str
    """The name under which the audit log records what it does."""
    tenant: str | None = None
    """The one tenant that it is for; none: the platform."""
    scopes: frozenset[str] = frozenset()

    def has(self, scope: str) -> bool:
        if self.tenant is not None and scope not in TENANT_SCOPES:
            return False
        return scope in self.scopes or EVERYTHING in self.scopes

    def require(self, scope: str) -> None:
        if self.has(scope):
            return
        if self.tenant is not None and scope not in TENANT_SCOPES:
            raise NotAllowed(
                f"this needs the scope {scope}, which nobody who is bound to a tenant can have; "
                "use a key or token of the platform"
            )
        raise NotAllowed(f"this needs the scope {scope}; use a key or token that has it")

    def may_see(self, tenant: str) -> bool:
        return self.tenant is None or self.tenant == tenant

    def require_sight(self, tenant: str) -> None:
        """Others' tenants are not there: whoever may not see one must not learn whether it exists."""
        if not self.may_see(tenant):
            raise TenantNotFound(f"there is no tenant {tenant!r}")


def read_scopes(scopes: Iterable[str], tenant: str | None = None) -> frozenset[str]:
    """The scopes of a new key, checked."""
    wanted = frozenset(scopes)
    if not wanted:
        raise TenantInvalid("scopes", f"expected at least one scope of {', '.join(SCOPES)}")
    for scope in sorted(wanted):
        if scope not in SCOPES:
            raise TenantInvalid("scopes", f"expected scopes to be of {', '.join(SCOPES)}, got: {scope[:80]!r}")
        if tenant is not None and scope not in TENANT_SCOPES and scope != EVERYTHING:
            raise TenantInvalid(
                "scopes",
                f"expected the scopes of a key for one tenant to be of {', '.join(sorted(TENANT_SCOPES))}, "
                f"or {EVERYTHING} for these, got: {scope!r}",
            )
    return wanted
