"""Services that handle events: which there are, how far they are, and for whom they are paused."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

import msgspec
from fastapi import APIRouter, Depends, Request
from pydantic import BaseModel, ConfigDict, Field

from tenantry.api.access import GuardedRoute, allow
from tenantry.api.parameters import TENANT_PATTERN, ServiceName, TenantFilter
from tenantry.api.problems import describe_problems
from tenantry.subscriptions.lane_consumers import Lag
from tenantry.subscriptions.subscription_desk import Subscription, SubscriptionDesk
from tenantry.tenants.principal import Principal

Reader = Annotated[Principal, allow("subscriptions:read")]
Writer = Annotated[Principal, allow("subscriptions:write")]

router = APIRouter(
    prefix="/v1/subscriptions",
    tags=["subscriptions"],
    route_class=GuardedRoute,
    responses=describe_problems(400, 401, 403, 404, 409, 422),
)


class PauseDocument(BaseModel):
    tenant_id: str
    paused_by: str
    paused_at: datetime


class SubscriptionDocument(BaseModel):
    """A service, as its workers declared it last."""

    service: str
    app: str
    channel: str
    types: list[str]
    handling_order: str
    after_last_retry: str = Field(description="what follows a dead letter: `skip`, `park_key` or `stop`")
    parts: int = Field(description="into how many parts each tenant's events are divided")
    created_at: datetime
    seen_at: datetime
    dead_letters: int = Field(description="how many there are; of its own tenant, for whoever is bound to one")
    pauses: list[PauseDocument] = Field(description="for whom it is paused; of its own tenant, as above")

    @classmethod
    def of(cls, subscription: Subscription) -> SubscriptionDocument:
        return cls.model_validate(msgspec.to_builtins(subscription))


class SubscriptionList(BaseModel):
    subscriptions: list[SubscriptionDocument]


class LagDocument(BaseModel):
    """How far a service is with a tenant's events. Each part goes through all of them and handles its own."""

    service: str
    tenant_id: str
    channel: str
    part: int
    pending: int | None = Field(description="yet to be handed out; null: no worker has had the tenant yet")
    in_flight: int | None = Field(description="handed out and not done")
    redelivered: int | None = Field(description="of those in flight, handed out before")
    ack_floor: int | None = Field(description="the sequence up to which everything is done")
    last_sequence: int | None = Field(description="of the newest event")
    is_known: bool = Field(description="false if NATS could not be asked")

    @classmethod
    def of(cls, lag: Lag) -> LagDocument:
        # The problem itself names servers, which is for operators alone.
        return cls.model_validate(msgspec.to_builtins(lag) | {"is_known": not lag.problem})


class LagList(BaseModel):
    lag: list[LagDocument]


class ForTenant(BaseModel):
    model_config = ConfigDict(extra="forbid")

    tenant: str = Field(pattern=TENANT_PATTERN, examples=["acme"])


def _desk(request: Request) -> SubscriptionDesk:
    found: SubscriptionDesk = request.app.state.subscriptions
    return found


Desk = Annotated[SubscriptionDesk, Depends(_desk)]


@router.get("")
async def list_subscriptions(desk: Desk, caller: Reader) -> SubscriptionList:
    """List the services that workers have served."""
    return SubscriptionList(subscriptions=[SubscriptionDocument.of(each) for each in await desk.all(caller.tenant)])


@router.get("/{service}")
async def get_subscription(desk: Desk, caller: Reader, service: ServiceName) -> SubscriptionDocument:
    """See a service."""
    return SubscriptionDocument.of(await desk.get(service, caller.tenant))


@router.get("/{service}/lag")
async def get_lag(desk: Desk, caller: Reader, service: ServiceName, tenant: TenantFilter = None) -> LagList:
    """See how far a service is behind, with each tenant or with one. Those that are most behind come first."""
    if tenant is not None:
        caller.require_sight(tenant)
    found = await desk.lag(service, tenant or caller.tenant)
    return LagList(lag=[LagDocument.of(each) for each in found])


@router.post("/{service}/pause")
async def pause_subscription(desk: Desk, caller: Writer, service: ServiceName, body: ForTenant) -> SubscriptionDocument:
    """Stop a service from handling a tenant's events, until it is resumed. To repeat the request changes nothing."""
    await desk.pause(service, body.tenant, caller.actor)
    return SubscriptionDocument.of(await desk.get(service))


@router.post("/{service}/resume")
async def resume_subscription(
    desk: Desk, caller: Writer, service: ServiceName, body: ForTenant
) -> SubscriptionDocument:
    """Let a service go on with a tenant's events. To repeat the request changes nothing."""
    await desk.resume(service, body.tenant, caller.actor)
    return SubscriptionDocument.of(await desk.get(service))
