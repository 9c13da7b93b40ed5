"""Workers: who is there, how they cope, and how many there should be."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request
from pydantic import BaseModel, Field

from tenantry.api.access import GuardedRoute, allow
from tenantry.api.parameters import NAME_PATTERN, TENANT_PATTERN
from tenantry.api.problems import describe_problems
from tenantry.errors import TenantInvalid
from tenantry.subscriptions.gauge import Group
from tenantry.subscriptions.roll_reader import Present
from tenantry.subscriptions.scaling import Bounds
from tenantry.subscriptions.worker_watch import WorkerWatch
from tenantry.tenants.principal import Principal

Reader = Annotated[Principal, allow("workers:read")]
AppName = Annotated[str, Query(max_length=100, description="the application that they are of", examples=["shop"])]

router = APIRouter(
    prefix="/v1/workers",
    tags=["workers"],
    route_class=GuardedRoute,
    responses=describe_problems(400, 401, 403, 422),
)


class Load(BaseModel):
    """What a worker has to do, and how it copes; what is counted begins anew when it starts."""

    partitions: int = Field(0, description="tenants, or parts of them, that it has, each once a service")
    behind: int = Field(0, description="those of which something waits")
    slots: int = Field(0, description="handlers that it can run at once")
    running: int = Field(0, description="handlers that run now")
    lag: int = Field(0, description="events that wait, as far as it knows, without what is paused")
    handled: int = Field(0, description="events that it has handled")
    busy_seconds: float = Field(0.0, description="how long handlers ran, all together")
    cpu_seconds: float = Field(0.0, description="processor time of its process")


class WorkerDocument(BaseModel):
    """A worker, as it told of itself."""

    id: str
    app: str
    services: list[str]
    tenants: list[str] = Field(description="those that it is there for; none: all")
    plans: list[str] = Field(description="the plans that it is there for; none: all")
    host: str
    pid: int
    is_leaving: bool = Field(description="whether it hands over what it has, and stops")
    age_seconds: float = Field(description="how long ago that was")
    load: Load

    @classmethod
    def of(cls, present: Present) -> WorkerDocument:
        return cls.model_validate(present.describe())


class WorkerList(BaseModel):
    workers: list[WorkerDocument]


class Scale(BaseModel):
    """How many workers there should be, and why."""

    wanted: int = Field(description="at most twice as many as there are; one less, if fewer were enough for a while")
    workers: int = Field(description="that are there, and not about to leave")
    lag: int = Field(description="events that wait")
    events_per_second: float = Field(description="that were handled lately")
    seconds_per_event: float | None = Field(
        description="that one worker takes for an event, with all its slots; null: nobody knows yet"
    )


def _watch(request: Request) -> WorkerWatch:
    found: WorkerWatch = request.app.state.workers
    return found


Watch = Annotated[WorkerWatch, Depends(_watch)]


@router.get("")
async def list_workers(watch: Watch, _: Reader) -> WorkerList:
    """List the workers that are there."""
    return WorkerList(workers=[WorkerDocument.of(each) for each in await watch.present()])


@router.get("/scale")
async def get_scale(
    watch: Watch,
    _: Reader,
    app: AppName,
    min: Annotated[int, Query(ge=1, le=1000, description="never fewer")] = 1,
    max: Annotated[int, Query(ge=1, le=1000, description="never more")] = 1000,
    tenant: Annotated[
        str | None, Query(pattern=TENANT_PATTERN, description="workers that are there for this tenant alone")
    ] = None,
    plan: Annotated[
        str | None, Query(pattern=NAME_PATTERN, description="workers that are there for this plan alone")
    ] = None,
) -> Scale:
    """Ask how many workers an application should have, for an autoscaler. Without a tenant or a plan, those are
    counted that are there for all."""
    if max < min:
        raise TenantInvalid("max", f"expected max to be at least min, which is {min}, got: {max}")
    tenants, plans = (frozenset() if each is None else frozenset((each,)) for each in (tenant, plan))
    decision = await watch.decide(Group(app, tenants, plans), Bounds(min, max))
    return Scale.model_validate(decision._asdict())
