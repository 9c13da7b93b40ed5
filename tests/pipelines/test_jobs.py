"""Jobs and parked lanes as people see them and act on them; what the jobs do is tested where it is done."""

from __future__ import annotations

import asyncio
import os
import signal
from typing import Any

import pytest

from tenantry.cli.job_waiting import wait_for_end
from tenantry.errors import TenantConflict, TenantNotFound
from tenantry.pipelines.job_desk import JobDesk
from tenantry.pipelines.lane_desk import LaneDesk
from tenantry.tenants.administration import Administration
from tests.pipelines.place import Place


@pytest.fixture
def jobs(administration: Administration, place: Place) -> JobDesk:
    place.open_lanes("acme", "globex")
    return JobDesk(administration)


@pytest.fixture
def lanes(administration: Administration, place: Place) -> LaneDesk:
    place.open_lanes("acme", "globex")
    place.open_lanes("acme", pipeline=f"{place.name}:rebuild", generation=2)
    return LaneDesk(administration)


def park(place: Place, tenant: str) -> None:
    place.execute(
        "update tenantry.pipeline_lanes set sequence = 6, parked_at = now(), parked_sequence = 7, "
        "parked_reason = 'ValueError: no', parked_traceback = 'line 3' where pipeline = %s and tenant_id = %s",
        [place.name, tenant],
    )


async def acts(administration: Administration) -> list[tuple[str, str, str | None]]:
    return [(each.actor, each.act, each.tenant_id) for each in await administration.audit.newest(1)]


async def test_what_is_asked_for_waits_and_is_on_record(
    jobs: JobDesk, place: Place, administration: Administration
) -> None:
    first = await jobs.ask("rebuild", place.name, None, "cli:ada")
    assert await acts(administration) == [("cli:ada", "pipeline.rebuild", None)]
    second = await jobs.ask("replay", place.name, "acme", "cli:ada", {"from": "2026-11-01"})
    assert await acts(administration) == [("cli:ada", "pipeline.replay", "acme")]
    assert [job.id for job in await jobs.newest(10)] == [second.id, first.id]
    assert await jobs.get(str(second.id)[:8]) == second
    assert (second.state, second.request, second.asked_by) == ("waiting", {"from": "2026-11-01"}, "cli:ada")


async def test_what_is_not_there_cannot_be_asked_for(jobs: JobDesk, place: Place) -> None:
    with pytest.raises(TenantNotFound, match="no pipeline nothing has read an event"):
        await jobs.ask("rebuild", "nothing", None, "test")
    with pytest.raises(TenantNotFound, match="of tenant initech yet"):
        await jobs.ask("rebuild", place.name, "initech", "test")
    with pytest.raises(TenantNotFound, match="nobody"):
        await jobs.ask("rebuild", place.name, "nobody", "test")
    assert await jobs.newest(10) == []


async def test_a_job_that_nobody_has_begun_is_cancelled_at_once(
    jobs: JobDesk, place: Place, administration: Administration
) -> None:
    job = await jobs.ask("rebuild", place.name, "acme", "test")
    assert (await jobs.cancel(str(job.id)[:8], "cli:ada")).state == "cancelled"
    assert await acts(administration) == [("cli:ada", "pipeline.cancel", "acme")]
    with pytest.raises(TenantConflict, match="has ended already: it is cancelled"):
        await jobs.cancel(str(job.id), "test")
    with pytest.raises(TenantNotFound, match="there is no job 'zzz'"):
        await jobs.cancel("zzz", "test")
    with pytest.raises(TenantNotFound, match="there is no job ''"):
        await jobs.cancel("", "test")


async def test_a_job_that_runs_is_asked_to_end(jobs: JobDesk, place: Place) -> None:
    job = await jobs.ask("rebuild", place.name, "acme", "test")
    place.execute("update tenantry.pipeline_jobs set state = 'running' where id = %s", [job.id])
    assert (await jobs.cancel(str(job.id), "test")).state == "cancelling"


async def test_the_jobs_of_a_tenant_go_with_it(jobs: JobDesk, place: Place, administration: Administration) -> None:
    await jobs.ask("rebuild", place.name, "acme", "test")
    await administration.delete("acme", "test")
    assert await jobs.newest(10) == []


async def test_whoever_waits_for_a_job_sees_its_end(jobs: JobDesk, place: Place) -> None:
    job = await jobs.ask("rebuild", place.name, "acme", "test")
    waiting = asyncio.create_task(wait_for_end(jobs, job))
    await asyncio.sleep(0)
    place.execute("update tenantry.pipeline_jobs set state = 'failed', problem = 'why' where id = %s", [job.id])
    ended = await waiting
    assert (ended.state, ended.problem) == ("failed", "why")


async def test_who_breaks_off_waiting_cancels_the_job_and_waits_for_that(jobs: JobDesk, place: Place) -> None:
    job = await jobs.ask("rebuild", place.name, "acme", "test")
    place.execute("update tenantry.pipeline_jobs set state = 'running' where id = %s", [job.id])
    waiting = asyncio.create_task(wait_for_end(jobs, job))
    await asyncio.sleep(0)
    os.kill(os.getpid(), signal.SIGINT)
    while (await jobs.get(str(job.id))).state != "cancelling":
        await asyncio.sleep(0.01)
    assert not waiting.done()
    place.execute("update tenantry.pipeline_jobs set state = 'cancelled' where id = %s", [job.id])
    assert (await waiting).state == "cancelled"


async def test_pipelines_are_listed_with_what_is_parked(lanes: LaneDesk, place: Place) -> None:
    park(place, "globex")
    (found,) = await lanes.pipelines()
    assert (found.pipeline, found.tenants, found.lanes, found.parked) == (place.name, 2, 2, 1)
    shown: list[Any] = await lanes.lanes(place.name)
    assert [lane.tenant_id for lane in shown] == ["globex", "acme"]
    assert (shown[0].parked_sequence, shown[0].parked_reason) == (7, "ValueError: no")
    assert [lane.tenant_id for lane in await lanes.lanes(place.name, "acme")] == ["acme"]
    with pytest.raises(TenantNotFound):
        await lanes.lanes("nothing")


async def test_a_parked_lane_is_resumed_and_others_stay_parked(
    lanes: LaneDesk, place: Place, administration: Administration
) -> None:
    park(place, "acme")
    park(place, "globex")
    (resumed,) = await lanes.resume("acme", place.name, None, "cli:ada")
    assert (resumed.channel, resumed.sequence) == ("events", 6)
    assert await acts(administration) == [("cli:ada", "pipeline.resume", "acme")]
    before, after = place.lane("globex"), place.lane("acme")
    assert before["parked_at"] is not None
    assert (after["parked_at"], after["sequence"], after["epoch"]) == (None, 6, 2)


async def test_what_is_not_parked_is_not_resumed(lanes: LaneDesk, place: Place) -> None:
    with pytest.raises(TenantConflict, match="is not parked on tenant acme"):
        await lanes.resume("acme", place.name, None, "test")
    with pytest.raises(TenantNotFound, match="has not read channel orders of tenant acme, only events"):
        await lanes.resume("acme", place.name, "orders", "test")
    with pytest.raises(TenantNotFound, match="no pipeline nothing"):
        await lanes.resume("acme", "nothing", None, "test")
    with pytest.raises(TenantNotFound, match="nobody"):
        await lanes.resume("nobody", place.name, None, "test")
