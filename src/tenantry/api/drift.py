"""Drift: the servers compared with what is wanted, and put right."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from fastapi import APIRouter
from pydantic import BaseModel, Field

from tenantry.api.access import GuardedRoute, Tenants, allow
from tenantry.api.problems import describe_problems
from tenantry.tenants.drift import Drift, Kind
from tenantry.tenants.principal import Principal

router = APIRouter(
    prefix="/v1/drift", tags=["drift"], route_class=GuardedRoute, responses=describe_problems(400, 401, 403, 422)
)


class DriftDocument(BaseModel):
    """Something on the servers that is not as the registry wants it, or that is not ours."""

    kind: Kind = Field(description="`missing` and `changed` can be repaired; `orphan` and `foreign` are not touched")
    what: str = Field(description="`stream` or `account`")
    name: str
    tenant: str | None
    details: dict[str, Any]
    repaired: bool


class DriftReport(BaseModel):
    drifts: list[DriftDocument]


@router.get("")
async def find_drift(tenants: Tenants, _: Annotated[Principal, allow("tenants:read")]) -> DriftReport:
    """Compare all servers with the registry. Nothing is changed."""
    return _report(await tenants.drift.find())


@router.post("/repair")
async def repair_drift(tenants: Tenants, _: Annotated[Principal, allow("tenants:write")]) -> DriftReport:
    """Put right what is ours; the answer says what was found and what could be repaired."""
    return _report(await tenants.drift.repair())


def _report(drifts: list[Drift]) -> DriftReport:
    return DriftReport(drifts=[DriftDocument.model_validate(msgspec.to_builtins(drift)) for drift in drifts])
