"""Workers of their own for tenants: asked for here, run by a fleet."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Depends, Path, Request, Response
from pydantic import BaseModel, ConfigDict, Field, StrictInt

from tenantry.api.access import GuardedRoute, allow
from tenantry.api.parameters import TENANT_PATTERN, Limit
from tenantry.api.problems import describe_problems
from tenantry.subscriptions.worker_jobs import MOST_PROCESSES, Origin, State, WorkerJob, WorkerJobs
from tenantry.tenants.principal import Principal

Reader = Annotated[Principal, allow("workers:read")]
Writer = Annotated[Principal, allow("workers:write")]
JobId = Annotated[UUID, Path(description="the job")]

router = APIRouter(
    prefix="/v1/jobs",
    tags=["workers"],
    route_class=GuardedRoute,
    responses=describe_problems(400, 401, 403, 404, 409, 422),
)


class JobDocument(BaseModel):
    """Processes of workers that are there for one tenant alone."""

    id: UUID
    tenant_id: str
    app: str = Field(description="the application whose fleet runs them; empty: any")
    count: int = Field(description="how many processes")
    origin: Origin = Field(description="`plan`: its plan has it so, and a fleet asked for it")
    state: State = Field(description="`waiting` for a fleet; `failed`: it dies, and is started again after a pause")
    host: str = Field(description="where they run")
    pids: list[int] = Field(description="the processes that run")
    problem: str = Field(description="why one died, if one did")
    asked_by: str
    asked_at: datetime
    updated_at: datetime

    @classmethod
    def of(cls, job: WorkerJob) -> JobDocument:
        return cls.model_validate(job.describe())


class JobList(BaseModel):
    jobs: list[JobDocument]


class WantedJob(BaseModel):
    model_config = ConfigDict(extra="forbid")

    tenant: str = Field(pattern=TENANT_PATTERN, description="whom they are for", examples=["acme"])
    count: StrictInt = Field(1, ge=1, le=MOST_PROCESSES, description="how many processes")
    app: str = Field("", max_length=100, description="the application whose fleet is to run them; empty: any")


def _jobs(request: Request) -> WorkerJobs:
    found: WorkerJobs = request.app.state.worker_jobs
    return found


Jobs = Annotated[WorkerJobs, Depends(_jobs)]


@router.post("", status_code=201)
async def start_job(jobs: Jobs, caller: Writer, body: WantedJob, response: Response) -> JobDocument:
    """Start workers for one tenant alone. They begin when a fleet has taken the job; GET shows whether one has."""
    job = await jobs.ask(body.tenant, caller.actor, count=body.count, app=body.app)
    response.headers["Location"] = f"/v1/jobs/{job.id}"
    return JobDocument.of(job)


@router.get("")
async def list_jobs(jobs: Jobs, _: Reader, limit: Limit = 100) -> JobList:
    """List the jobs, the newest first, and those that are over last."""
    return JobList(jobs=[JobDocument.of(each) for each in await jobs.newest(limit)])


@router.get("/{job}")
async def get_job(jobs: Jobs, _: Reader, job: JobId) -> JobDocument:
    """See a job: whether it runs, where, or why not."""
    return JobDocument.of(await jobs.get(str(job)))


@router.delete("/{job}", status_code=202)
async def stop_job(jobs: Jobs, caller: Writer, job: JobId) -> JobDocument:
    """Stop a job. Its processes drain, and others handle the tenant's events."""
    return JobDocument.of(await jobs.stop(str(job), caller.actor))
