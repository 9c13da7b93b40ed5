"""Plans: named limits."""

from __future__ import annotations

from typing import Annotated

import msgspec
from fastapi import APIRouter, Response
from pydantic import BaseModel, Field, JsonValue

from tenantry.api.access import GuardedRoute, Tenants, allow
from tenantry.api.documents import LimitsDocument
from tenantry.api.parameters import PlanName
from tenantry.api.problems import describe_problems
from tenantry.errors import TenantNotFound
from tenantry.tenants.plans import Plan
from tenantry.tenants.principal import Principal

Reader = Annotated[Principal, allow("plans:read")]
Writer = Annotated[Principal, allow("plans:write")]

router = APIRouter(
    prefix="/v1/plans",
    tags=["plans"],
    route_class=GuardedRoute,
    responses=describe_problems(400, 401, 403, 404, 409, 422),
)


class PlanDocument(BaseModel):
    name: str
    limits: LimitsDocument
    tenants: int = Field(description="how many tenants are on it")


class PlanList(BaseModel):
    plans: list[PlanDocument]


@router.get("")
async def list_plans(tenants: Tenants, _: Reader) -> PlanList:
    """List all plans."""
    return PlanList(plans=[_document(plan, count) for plan, count in await tenants.registry.plans()])


@router.get("/{name}")
async def get_plan(tenants: Tenants, _: Reader, name: PlanName) -> PlanDocument:
    """See a plan."""
    found = await _find(tenants, name)
    if found is None:
        raise TenantNotFound(f"there is no plan {name!r}")
    return found


@router.put("/{name}", responses={201: {"model": PlanDocument, "description": "Created."}})
async def put_plan(
    tenants: Tenants, caller: Writer, name: PlanName, body: dict[str, JsonValue], response: Response
) -> PlanDocument:
    """Create or change a plan: the body holds limits, like `{"publish_rate": 100, "retention": {"*": "7d"}}`.

    What is left out of a plan that is there stays as it is. Its tenants follow within seconds.
    """
    before = await _find(tenants, name)
    plan = await tenants.put_plan(name, body, caller.actor)
    if before is None:
        response.status_code = 201
    return _document(plan, before.tenants if before else 0)


@router.delete("/{name}", status_code=204)
async def delete_plan(tenants: Tenants, caller: Writer, name: PlanName) -> None:
    """Delete a plan that no tenant is on."""
    await tenants.delete_plan(name, caller.actor)


async def _find(tenants: Tenants, name: str) -> PlanDocument | None:
    plans = await tenants.registry.plans()
    return next((_document(plan, count) for plan, count in plans if plan.name == name), None)


def _document(plan: Plan, tenants: int) -> PlanDocument:
    limits = LimitsDocument.model_validate(msgspec.to_builtins(plan.limits))
    return PlanDocument(name=plan.name, limits=limits, tenants=tenants)
