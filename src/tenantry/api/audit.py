"""The audit log."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, Query
from pydantic import BaseModel, ConfigDict, Field

from tenantry.api.access import GuardedRoute, Tenants, allow
from tenantry.api.parameters import LARGEST_NUMBER, TENANT_PATTERN, Limit
from tenantry.api.problems import describe_problems
from tenantry.tenants.principal import Principal

Reader = Annotated[Principal, allow("audit:read")]

router = APIRouter(
    prefix="/v1/audit",
    tags=["audit"],
    route_class=GuardedRoute,
    responses=describe_problems(400, 401, 403, 422),
)


class AuditDocument(BaseModel):
    """One act."""

    number: int
    at: datetime
    actor: str = Field(description="who did it, like `key:…`, `token:…`, `cli:…` or `webhook`")
    act: str = Field(description="what was done, like `tenant.create`")
    tenant_id: str | None
    before: dict[str, Any] | None
    after: dict[str, Any] | None
    seal: str


class AuditPage(BaseModel):
    entries: list[AuditDocument]
    next: int | None = Field(description="`before` for the next page; null on the last one")


class Verification(BaseModel):
    model_config = ConfigDict(extra="forbid")

    expected: str = Field(
        "",
        pattern="^([0-9]{1,18}:[0-9a-f]{64})?$",
        description="a `number:seal` that was answered before: the log must still contain it",
    )


class SealDocument(BaseModel):
    """The newest entry: written down elsewhere, it proves later that nothing was cut off the end."""

    number: int
    seal: str


@router.get("")
async def read_audit(
    tenants: Tenants,
    _: Reader,
    tenant: Annotated[str | None, Query(pattern=TENANT_PATTERN, description="only what was done to this one")] = None,
    before: Annotated[int | None, Query(ge=1, le=LARGEST_NUMBER, description="only entries before this number")] = None,
    limit: Limit = 50,
) -> AuditPage:
    """Read what was done, the newest first."""
    found = await tenants.audit.newest(limit + 1, tenant=tenant, before=before)
    return AuditPage(
        entries=[AuditDocument.model_validate(msgspec.to_builtins(each)) for each in found[:limit]],
        next=found[limit - 1].number if len(found) > limit else None,
    )


@router.post("/verify", responses=describe_problems(409))
async def verify_audit(tenants: Tenants, _: Reader, body: Verification | None = None) -> SealDocument:
    """Check every entry of the log against its seal; 409 names the first that is not as it was written."""
    seal = await tenants.audit.verify(body.expected if body else "")
    return SealDocument(number=seal.number, seal=seal.seal)
