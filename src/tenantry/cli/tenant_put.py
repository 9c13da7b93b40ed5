"""Creates or changes a tenant, and tells which of the two it was."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from tenantry.cli.session import actor
from tenantry.tenants.administration import Administration
from tenantry.tenants.spec import TenantSpec
from tenantry.tenants.tenant import Tenant

Outcome = Literal["created", "changed", "unchanged"]


async def put(
    administration: Administration,
    id: str,
    spec: Callable[[Tenant | None], TenantSpec],
    *,
    must_exist: bool = False,
) -> tuple[Tenant, Outcome]:
    """`spec` is told the tenant as it was, if there was one."""
    before = await administration.registry.find(id)
    tenant, is_new = await administration.put(spec(before), actor(), must_exist=must_exist)
    if is_new:
        return tenant, "created"
    return tenant, "unchanged" if before and before.revision == tenant.revision else "changed"
