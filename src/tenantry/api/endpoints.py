"""Push endpoints: URLs of a tenant that its events are delivered to, signed."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Depends, Path, Request
from pydantic import BaseModel, ConfigDict, Field, StrictInt

from tenantry.api.access import GuardedRoute, Tenants, allow
from tenantry.api.parameters import NAME_PATTERN, TenantId
from tenantry.api.problems import describe_problems
from tenantry.subscriptions.push_endpoint import Order, PushEndpoint, PushSpec, State
from tenantry.subscriptions.push_endpoints import OVERLAP_SECONDS, PushEndpoints
from tenantry.subscriptions.push_secrets import PushSecrets
from tenantry.tenants.principal import Principal

Reader = Annotated[Principal, allow("endpoints:read")]
Writer = Annotated[Principal, allow("endpoints:write")]
EndpointName = Annotated[str, Path(pattern=NAME_PATTERN, description="the endpoint", examples=["orders"])]

router = APIRouter(
    prefix="/v1/tenants/{id}/endpoints",
    tags=["endpoints"],
    route_class=GuardedRoute,
    responses=describe_problems(400, 401, 403, 404, 409, 422),
)


def _endpoints(request: Request) -> PushEndpoints:
    found: PushEndpoints = request.app.state.endpoints
    return found


EndpointStore = Annotated[PushEndpoints, Depends(_endpoints)]


class EndpointDocument(BaseModel):
    """Where events are delivered to, and how."""

    id: UUID
    tenant_id: str
    name: str
    url: str
    channel: str
    types: list[str] = Field(description="the types of events, in which `*` is one word and `>` all that follow")
    order: Order = Field(description="`fifo`: one after another; `parallel`: as they come")
    max_in_flight: int = Field(description="deliveries under way at once, at most")
    timeout_seconds: int = Field(description="for one attempt, as a whole")
    retries: int = Field(description="attempts after the first; then an event goes to the dead letters")
    secret_version: int = Field(description="counts the rotations of its secret")
    previous_secret_until: datetime | None = Field(description="until then the former secret signs, too")
    state: State
    state_reason: str = Field(description="why it is disabled, if that is known")
    created_at: datetime
    updated_at: datetime

    @classmethod
    def of(cls, endpoint: PushEndpoint) -> EndpointDocument:
        return cls.model_validate(endpoint.describe())


class EndpointList(BaseModel):
    endpoints: list[EndpointDocument]


class EndpointSecret(BaseModel):
    secret: str = Field(description="`whsec_…`: what a receiver verifies signatures with (Standard Webhooks)")
    previous_secret_until: datetime | None = Field(description="until then the former secret signs, too")


class EndpointWithSecret(EndpointSecret):
    endpoint: EndpointDocument


class EndpointChange(BaseModel):
    """What is to be different; what is left out stays as it is."""

    model_config = ConfigDict(extra="forbid")

    url: str | None = Field(None, description="with https://, and leading to a public address")
    types: list[str] | None = Field(None, description="the types of events, like `order.*`; `>` for all")
    order: Order | None = Field(None, description="`fifo`: one after another; `parallel`: as they come")
    max_in_flight: StrictInt | None = Field(None, description="deliveries under way at once: 1 to 1000")
    timeout_seconds: StrictInt | None = Field(None, description="for one attempt: 1 to 60")
    retries: StrictInt | None = Field(None, description="attempts after the first: 0 to 100")

    def to_spec(self) -> PushSpec:
        return PushSpec(
            url=self.url,
            types=None if self.types is None else tuple(self.types),
            order=self.order,
            max_in_flight=self.max_in_flight,
            timeout_seconds=self.timeout_seconds,
            retries=self.retries,
        )


class WantedEndpoint(EndpointChange):
    """An endpoint; what is left out gets its default."""

    name: str = Field(description="lower-case letters, digits and dashes", examples=["orders"])
    url: str = Field(description="with https://, and leading to a public address", examples=["https://example.com/"])
    channel: str = Field("events", description="the channel whose events are delivered")


class SecretRotation(BaseModel):
    model_config = ConfigDict(extra="forbid")

    overlap_seconds: StrictInt = Field(OVERLAP_SECONDS, description="how long the former secret signs, too")


class Disabling(BaseModel):
    model_config = ConfigDict(extra="forbid")

    reason: str = Field("", description="why, for people")


@router.post("", status_code=201)
async def create_endpoint(
    tenants: Tenants, endpoints: EndpointStore, caller: Writer, id: TenantId, body: WantedEndpoint
) -> EndpointWithSecret:
    """Create an endpoint. The answer holds the secret that its receiver verifies signatures with."""
    made = await endpoints.create(id, body.name, body.to_spec(), caller.actor, channel=body.channel)
    return _with_secret(tenants, made)


@router.get("")
async def list_endpoints(endpoints: EndpointStore, _: Reader, id: TenantId) -> EndpointList:
    """List a tenant's endpoints."""
    return EndpointList(endpoints=[EndpointDocument.of(each) for each in await endpoints.of(id)])


@router.get("/{name}")
async def get_endpoint(endpoints: EndpointStore, _: Reader, id: TenantId, name: EndpointName) -> EndpointDocument:
    """See an endpoint."""
    return EndpointDocument.of(await endpoints.get(id, name))


@router.patch("/{name}")
async def change_endpoint(
    endpoints: EndpointStore, caller: Writer, id: TenantId, name: EndpointName, body: EndpointChange
) -> EndpointDocument:
    """Change an endpoint; deliveries follow within seconds."""
    return EndpointDocument.of(await endpoints.change(id, name, body.to_spec(), caller.actor))


@router.delete("/{name}", status_code=204)
async def delete_endpoint(endpoints: EndpointStore, caller: Writer, id: TenantId, name: EndpointName) -> None:
    """Delete an endpoint. One that is made later under the same name has another secret."""
    await endpoints.delete(id, name, caller.actor)


@router.post("/{name}/rotate")
async def rotate_endpoint(
    tenants: Tenants,
    endpoints: EndpointStore,
    caller: Writer,
    id: TenantId,
    name: EndpointName,
    body: SecretRotation | None = None,
) -> EndpointWithSecret:
    """Sign with a new secret, and for a while, a day by default, with the former one beside it."""
    overlap = (body or SecretRotation()).overlap_seconds
    return _with_secret(tenants, await endpoints.rotate(id, name, caller.actor, overlap=overlap))


@router.post("/{name}/enable")
async def enable_endpoint(
    endpoints: EndpointStore, caller: Writer, id: TenantId, name: EndpointName
) -> EndpointDocument:
    """Deliver to a disabled endpoint again."""
    return EndpointDocument.of(await endpoints.enable(id, name, caller.actor))


@router.post("/{name}/disable")
async def disable_endpoint(
    endpoints: EndpointStore, caller: Writer, id: TenantId, name: EndpointName, body: Disabling | None = None
) -> EndpointDocument:
    """Deliver nothing to an endpoint until it is enabled again."""
    return EndpointDocument.of(await endpoints.disable(id, name, caller.actor, (body or Disabling()).reason))


@router.get("/{name}/secret")
async def reveal_secret(
    tenants: Tenants, endpoints: EndpointStore, caller: Writer, id: TenantId, name: EndpointName
) -> EndpointSecret:
    """See the secret that a receiver verifies signatures with. The audit log records that it was shown."""
    found = await endpoints.reveal(id, name, caller.actor)
    return EndpointSecret(
        secret=PushSecrets(tenants.keyring).current(found), previous_secret_until=found.previous_secret_until
    )


def _with_secret(tenants: Tenants, endpoint: PushEndpoint) -> EndpointWithSecret:
    return EndpointWithSecret(
        endpoint=EndpointDocument.of(endpoint),
        secret=PushSecrets(tenants.keyring).current(endpoint),
        previous_secret_until=endpoint.previous_secret_until,
    )
