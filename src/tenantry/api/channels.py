"""Channels of a tenant."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Response
from pydantic import BaseModel, ConfigDict, Field

from tenantry.api.access import GuardedRoute, Tenants, allow
from tenantry.api.documents import ChannelDocument
from tenantry.api.parameters import ChannelName, Duration, TenantId
from tenantry.api.problems import describe_problems
from tenantry.errors import TenantNotFound
from tenantry.tenants.principal import Principal
from tenantry.tenants.spec import TenantSpec
from tenantry.tenants.tenant import Tenant

router = APIRouter(
    prefix="/v1/tenants/{id}/channels",
    tags=["channels"],
    route_class=GuardedRoute,
    responses=describe_problems(400, 401, 403, 404, 409, 422),
)


class ChannelChange(BaseModel):
    model_config = ConfigDict(extra="forbid")

    retention: Duration | None = Field(
        None, description="how long events are kept: seconds, or a text like `7d`; null: as the plan says"
    )


@router.get("/{name}")
async def get_channel(
    tenants: Tenants, _: Annotated[Principal, allow("tenants:read")], id: TenantId, name: ChannelName
) -> ChannelDocument:
    """See a channel."""
    return _document(await tenants.registry.get(id), name)


@router.put(
    "/{name}",
    responses={
        201: {"model": ChannelDocument, "description": "Created."},
        202: {"model": ChannelDocument, "description": "Recorded; the servers follow."},
    },
)
async def put_channel(
    tenants: Tenants,
    caller: Annotated[Principal, allow("tenants:write")],
    id: TenantId,
    name: ChannelName,
    body: ChannelChange,
    response: Response,
) -> ChannelDocument:
    """Add a channel, or change how long it keeps events."""
    before = await tenants.registry.get(id)
    after, _ = await tenants.put(TenantSpec(id=id, channels={name: body.retention}), caller.actor, must_exist=True)
    if not after.is_ready:
        response.status_code = 202
    elif before.channel(name) is None:
        response.status_code = 201
    return _document(after, name)


@router.delete("/{name}", status_code=204, response_model=None, responses={202: {"description": "Recorded."}})
async def delete_channel(
    tenants: Tenants, caller: Annotated[Principal, allow("tenants:write")], id: TenantId, name: ChannelName
) -> Response:
    """Erase a channel with all that it holds. A tenant keeps at least one."""
    _document(await tenants.registry.get(id), name)
    after, _ = await tenants.put(TenantSpec(id=id, without_channels=(name,)), caller.actor, must_exist=True)
    return Response(status_code=204 if after.is_ready else 202)


def _document(tenant: Tenant, name: str) -> ChannelDocument:
    channel = tenant.channel(name)
    if channel is None:
        raise TenantNotFound(f"tenant {tenant.id} has no channel {name!r}")
    return ChannelDocument(retention=tenant.retention_of(channel))
