"""Redrives, discards, replays and rewinds: what workers are asked to do, and how far they are."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal
from uuid import UUID

import msgspec
from fastapi import APIRouter, Depends, Path, Request
from pydantic import AwareDatetime, BaseModel, ConfigDict, Field

from tenantry.api.access import GuardedRoute, allow
from tenantry.api.parameters import LARGEST_NUMBER, SERVICE_PATTERN, TENANT_PATTERN, Limit, TenantFilter
from tenantry.api.problems import describe_problems
from tenantry.subscriptions.job_desk import Reread, SubscriptionJob, SubscriptionJobDesk
from tenantry.tenants.principal import Principal

Reader = Annotated[Principal, allow("subscriptions:read")]
Writer = Annotated[Principal, allow("subscriptions:write")]
JobId = Annotated[UUID, Path(description="the job")]

router = APIRouter(
    prefix="/v1/subscription-jobs",
    tags=["subscriptions"],
    route_class=GuardedRoute,
    responses=describe_problems(400, 401, 403, 404, 409, 422),
)


class SubscriptionJobDocument(BaseModel):
    """What workers are asked to do."""

    id: UUID
    kind: Literal["redrive", "discard", "replay", "rewind"]
    service: str
    tenant_id: str | None = Field(description="null: it is about several tenants")
    request: dict[str, Any] = Field(description="what was asked for")
    state: Literal["running", "cancelling", "cancelled", "done", "failed"]
    done: int
    failed: int = Field(description="how many failed again")
    total: int | None
    problem: str
    asked_by: str
    asked_at: datetime
    updated_at: datetime

    @classmethod
    def of(cls, job: SubscriptionJob) -> SubscriptionJobDocument:
        return cls.model_validate(msgspec.to_builtins(job))


class SubscriptionJobList(BaseModel):
    jobs: list[SubscriptionJobDocument]


class WantedReplay(BaseModel):
    """Begins at `from` or at `from_sequence`."""

    model_config = ConfigDict(extra="forbid")

    kind: Reread = Field(
        "replay",
        description="`replay`: beside what comes in; `rewind`: the service goes back itself, and on from there",
    )
    service: str = Field(pattern=SERVICE_PATTERN, examples=["invoices"])
    tenant: str = Field(pattern=TENANT_PATTERN, examples=["acme"])
    from_: AwareDatetime | None = Field(None, alias="from", description="begin with what came in then")
    from_sequence: int | None = Field(None, ge=1, le=LARGEST_NUMBER, description="begin with this sequence")
    to: AwareDatetime | None = Field(None, description="end before what came in then; null: where the service is now")


def _desk(request: Request) -> SubscriptionJobDesk:
    found: SubscriptionJobDesk = request.app.state.subscription_jobs
    return found


Desk = Annotated[SubscriptionJobDesk, Depends(_desk)]


@router.get("")
async def list_subscription_jobs(
    desk: Desk, caller: Reader, tenant: TenantFilter = None, limit: Limit = 50
) -> SubscriptionJobList:
    """List what workers were asked to do, the newest first. Whoever is bound to a tenant sees what is for it alone."""
    if tenant is not None:
        caller.require_sight(tenant)
    found = await desk.newest(limit, tenant=tenant or caller.tenant)
    return SubscriptionJobList(jobs=[SubscriptionJobDocument.of(each) for each in found])


@router.get("/{job}")
async def get_subscription_job(desk: Desk, caller: Reader, job: JobId) -> SubscriptionJobDocument:
    """See how far a job is."""
    return SubscriptionJobDocument.of(await desk.get(str(job), caller.tenant))


@router.post("", status_code=202)
async def ask_replay(desk: Desk, caller: Writer, body: WantedReplay) -> SubscriptionJobDocument:
    """Give a service a tenant's events again. The worker that holds the tenant does it."""
    return SubscriptionJobDocument.of(
        await desk.ask(
            body.kind,
            body.service,
            body.tenant,
            caller.actor,
            from_=body.from_,
            from_sequence=body.from_sequence,
            to=body.to,
        )
    )


@router.post("/{job}/cancel")
async def cancel_subscription_job(desk: Desk, caller: Writer, job: JobId) -> SubscriptionJobDocument:
    """Cancel a job. What it has done stays; dead letters that it has not reached stay, too."""
    return SubscriptionJobDocument.of(await desk.cancel(str(job), caller.actor))
