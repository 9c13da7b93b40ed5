"""Tenants: list, create, change, suspend, resume, delete."""

from __future__ import annotations

from typing import Annotated, Any, Final

from fastapi import APIRouter, Query, Response
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Field, JsonValue

from tenantry.api.access import GuardedRoute, Tenants, allow
from tenantry.api.documents import PlacementDocument, TenantDocument
from tenantry.api.parameters import NAME_PATTERN, TENANT_PATTERN, Duration, Limit, TenantId
from tenantry.api.problems import describe_problems
from tenantry.errors import ProvisioningFailed
from tenantry.tenants.principal import Principal
from tenantry.tenants.spec import TenantSpec
from tenantry.tenants.tenant import Status, Tenant, Tier

Reader = Annotated[Principal, allow("tenants:read")]
Writer = Annotated[Principal, allow("tenants:write")]

RECORDED: Final[dict[int | str, dict[str, Any]]] = {
    202: {
        "model": TenantDocument,
        "description": "Recorded, and the servers do not have it all yet; it is completed by itself.",
    }
}
CREATED: Final[dict[int | str, dict[str, Any]]] = {201: {"model": TenantDocument, "description": "Created."}}

router = APIRouter(
    prefix="/v1/tenants",
    tags=["tenants"],
    route_class=GuardedRoute,
    responses=describe_problems(400, 401, 403, 404, 409, 422),
)


class TenantChange(BaseModel):
    """What is wanted of a tenant. What is left out stays as it is, or gets its default in a new tenant."""

    model_config = ConfigDict(extra="forbid")

    name: str | None = Field(None, description="for people", examples=["Acme Inc."])
    plan: str | None = Field(None, description="the plan; `pro` in a new tenant", examples=["pro"])
    tier: Tier | None = Field(
        None, description="how it is kept apart from others; `stream` in a new tenant, and changed by a move only"
    )
    overrides: dict[str, JsonValue] | None = Field(
        None,
        description="limits that are to differ from the plan's; null takes one back",
        examples=[{"publish_rate": 5000, "storage": "20GiB"}],
    )
    placement: PlacementDocument | None = Field(None, description="where its data may lie")
    channels: dict[str, Duration | None] | None = Field(
        None,
        description="channels to have, with a retention like `7d` or, for the plan's, null; none is removed",
        examples=[{"events": "7d", "properties": None}],
    )

    def to_spec(self, id: str) -> TenantSpec:
        given = self.model_dump(include=set(TenantChange.model_fields), exclude_unset=True)
        return TenantSpec(id=id, **given)


class NewTenant(TenantChange):
    id: str = Field(description="lower-case letters, digits and dashes", pattern=TENANT_PATTERN, examples=["acme"])


class TenantPage(BaseModel):
    tenants: list[TenantDocument]
    next: str | None = Field(description="`after` for the next page; null on the last one")


@router.get("")
async def list_tenants(
    tenants: Tenants,
    caller: Reader,
    after: Annotated[str, Query(pattern=f"^$|{TENANT_PATTERN}", description="the id after which to go on")] = "",
    limit: Limit = 100,
    status: Status | None = None,
    plan: Annotated[str | None, Query(pattern=NAME_PATTERN)] = None,
    tier: Tier | None = None,
) -> TenantPage:
    """List tenants by id. Whoever is bound to a tenant sees that one."""
    if caller.tenant is None:
        found = await tenants.registry.page(after=after, limit=limit + 1, status=status, plan=plan, tier=tier)
    else:
        own = await tenants.registry.find(caller.tenant)
        found = [own] if own and own.id > after and _matches(own, status, plan, tier) else []
    return TenantPage(
        tenants=[TenantDocument.of(each) for each in found[:limit]],
        next=found[limit - 1].id if len(found) > limit else None,
    )


@router.post("", responses=CREATED | RECORDED)
async def create_tenant(tenants: Tenants, caller: Writer, body: NewTenant, response: Response) -> TenantDocument:
    """Create a tenant, or change it if it is there: as PUT does, with the id in the body."""
    return await _put(tenants, caller, body.to_spec(body.id), response)


@router.get("/{id}")
async def get_tenant(tenants: Tenants, _: Reader, id: TenantId) -> TenantDocument:
    """See a tenant."""
    return TenantDocument.of(await tenants.registry.get(id))


@router.put("/{id}", responses=CREATED | RECORDED)
async def put_tenant(
    tenants: Tenants, caller: Writer, id: TenantId, body: TenantChange, response: Response
) -> TenantDocument:
    """Create a tenant, or change it if it is there. To repeat the request changes nothing."""
    return await _put(tenants, caller, body.to_spec(id), response)


@router.patch("/{id}", responses=RECORDED)
async def change_tenant(
    tenants: Tenants, caller: Writer, id: TenantId, body: TenantChange, response: Response
) -> TenantDocument:
    """Change a tenant that is there."""
    return await _put(tenants, caller, body.to_spec(id), response, must_exist=True)


@router.delete("/{id}", status_code=204, response_model=None, responses=RECORDED)
async def delete_tenant(tenants: Tenants, caller: Writer, id: TenantId) -> Response:
    """Erase a tenant and all its data, everywhere and for good. The audit log keeps that it was done."""
    try:
        await tenants.delete(id, caller.actor)
    except ProvisioningFailed:
        left = TenantDocument.of(await tenants.registry.get(id))
        return JSONResponse(left.model_dump(mode="json"), status_code=202)
    return Response(status_code=204)


@router.post("/{id}/suspend", responses=RECORDED)
async def suspend_tenant(tenants: Tenants, caller: Writer, id: TenantId, response: Response) -> TenantDocument:
    """Cut a tenant's publishing and consumption at once, and keep its data."""
    return answer(await tenants.suspend(id, caller.actor), response)


@router.post("/{id}/resume", responses=RECORDED)
async def resume_tenant(tenants: Tenants, caller: Writer, id: TenantId, response: Response) -> TenantDocument:
    """Let a suspended tenant publish and consume again."""
    return answer(await tenants.resume(id, caller.actor), response)


def _matches(tenant: Tenant, status: Status | None, plan: str | None, tier: Tier | None) -> bool:
    return status in (None, tenant.status) and plan in (None, tenant.plan) and tier in (None, tenant.tier)


async def _put(
    tenants: Tenants, caller: Principal, spec: TenantSpec, response: Response, *, must_exist: bool = False
) -> TenantDocument:
    tenant, created = await tenants.put(spec, caller.actor, must_exist=must_exist)
    if created:
        response.status_code = 201
        response.headers["Location"] = f"/v1/tenants/{tenant.id}"
    return answer(tenant, response)


def answer(tenant: Tenant, response: Response) -> TenantDocument:
    """The tenant, with 202 if the servers do not have it all yet."""
    if not tenant.is_ready:
        response.status_code = 202
    return TenantDocument.of(tenant)
