"""Jobs as they are asked for, and what there is before and after them."""

from __future__ import annotations

import json
from typing import Any

from tenantry.nats.connections import connect
from tenantry.pipelines.job_desk import Job, JobDesk, Kind
from tests.pipelines.running import Running, event
from tests.pipelines.shop import fold


def order(number: int, **data: Any) -> bytes:
    return event(number, customer=f"c{number % 5}", amount=number + 1, **data)


def folded(count: int, times: int = 1) -> dict[str, Any]:
    """What the documents of so many orders must be."""
    states = fold([json.loads(order(number))["data"] for number in range(count)])
    return {id: state | {"total": times * state["total"]} for id, state in states.items()}


async def ask(running: Running, kind: Kind, pipeline: str, tenant: str | None = "acme", **request: Any) -> Job:
    return await JobDesk(running.administration).ask(kind, pipeline, tenant, "test", request)


async def until_ended(running: Running, job: Job) -> Job:
    desk = JobDesk(running.administration)

    async def has_ended() -> bool:
        return (await desk.get(str(job.id))).has_ended

    await running.until(has_ended, "the job should end")
    return await desk.get(str(job.id))


async def do(running: Running, kind: Kind, pipeline: str, tenant: str | None = "acme", **request: Any) -> Job:
    return await until_ended(running, await ask(running, kind, pipeline, tenant, **request))


async def until_documents(running: Running, tenant: str, expected: dict[str, Any]) -> None:
    async def are_there() -> bool:
        return await running.documents(tenant, "customers") == expected

    await running.until(are_there, f"documents of {tenant} should be {expected}")


async def stored_documents(running: Running, tenant: str) -> list[dict[str, Any]]:
    """All there is of them, to the byte."""
    return await running.ask(
        "select d.*, d.document::text as text from tenantry.documents d where tenant_id = %s order by 1, 2, 3, 4",
        tenant,
    )


async def last_sequence(running: Running, tenant: str) -> int:
    lane = await running.administration.lanes.resolve(tenant, "events")
    async with running.administration.backbone.jetstream(lane.broker) as jetstream:
        return await jetstream.last_sequence(lane.stream, lane.subjects)


async def expire(running: Running, tenant: str, before: int) -> None:
    """The stream has no more what came before this sequence."""
    lane = await running.administration.lanes.resolve(tenant, "events")
    async with connect(lane.broker, "test") as client:
        await client.jetstream().purge_stream(lane.stream, seq=before, subject=lane.subjects)
