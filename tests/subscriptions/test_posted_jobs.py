"""Jobs as fleets take them, one after another's end, with processes that only pretend to run."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from itertools import count
from typing import Any

import pytest

from tenantry.errors import TenantConflict, TenantInvalid, TenantNotFound
from tenantry.service import end
from tenantry.subscriptions.posted_jobs import PostedJobs
from tenantry.subscriptions.worker_jobs import WorkerJob, WorkerJobs
from tenantry.tenants.administration import Administration
from tests.subscriptions.working import Working, until

_numbers = count(1000)


class Pretended:
    """What a fleet sees of a process."""

    def __init__(self, flags: Sequence[str]) -> None:
        self.flags = list(flags)
        self.pid = next(_numbers)
        self.exit_code: int | None = None
        self.last_lines = ["it began", "it is out of memory"]

    async def stop(self) -> None:
        self.exit_code = 0

    def kill(self) -> None:
        self.exit_code = -9


class Taking:
    """The jobs of a fleet that runs."""

    def __init__(self, administration: Administration, app: str = "shop", **options: Any) -> None:
        self.started: list[Pretended] = []
        self._jobs = PostedJobs(administration.pool, app, self._spawn, **{"lease_seconds": 1.0, **options})
        self.running = asyncio.ensure_future(self._jobs.run())

    def _spawn(self, flags: Sequence[str]) -> Pretended:
        self.started.append(Pretended(flags))
        return self.started[-1]

    @property
    def pids(self) -> list[int]:
        return [each.pid for each in self.started if each.exit_code is None]

    async def stop(self) -> None:
        await end([self.running])
        await self._jobs.stop()

    async def vanish(self) -> None:
        """As if the machine were gone."""
        await end([self.running])


@asynccontextmanager
async def taking(administration: Administration, app: str = "shop", **options: Any) -> AsyncIterator[Taking]:
    fleet = Taking(administration, app, **options)
    try:
        yield fleet
        assert not fleet.running.done(), fleet.running.exception()
    finally:
        await fleet.stop()


@pytest.fixture
def jobs(administration: Administration) -> WorkerJobs:
    return WorkerJobs(administration)


async def until_running(jobs: WorkerJobs, job: WorkerJob, pids: list[int]) -> None:
    async def runs() -> bool:
        found = await jobs.get(str(job.id))
        return (found.state, found.pids) == ("running", pids)

    await until(runs)


async def test_a_job_has_as_many_processes_as_were_asked_for(working: Working, jobs: WorkerJobs) -> None:
    await working.tenant("acme")
    job = await jobs.ask("acme", "test", count=3)
    async with taking(working.administration) as fleet:
        await until(lambda: len(fleet.pids) == 3)
        await until_running(jobs, job, fleet.pids)
        assert {tuple(each.flags) for each in fleet.started} == {("--worker-tenants", "acme", "--worker-plans", "")}


async def test_one_of_several_fleets_has_a_job_and_leaves_it_to_the_others(working: Working, jobs: WorkerJobs) -> None:
    await working.tenant("acme")
    job = await jobs.ask("acme", "test")
    first, second = Taking(working.administration), Taking(working.administration)
    await until(lambda: bool(first.pids or second.pids))
    await until_running(jobs, job, [*first.pids, *second.pids])
    has, waits = (first, second) if first.pids else (second, first)
    assert not waits.started
    await has.stop()
    assert not has.pids
    await until(lambda: bool(waits.pids))
    await until_running(jobs, job, waits.pids)
    await waits.stop()


async def test_a_job_whose_fleet_died_is_taken_over(working: Working, jobs: WorkerJobs) -> None:
    await working.tenant("acme")
    job = await jobs.ask("acme", "test")
    dead = Taking(working.administration)
    await until(lambda: bool(dead.pids))
    await dead.vanish()
    async with taking(working.administration) as heir:
        await until(lambda: bool(heir.pids))
        await until_running(jobs, job, heir.pids)


async def test_a_job_that_was_to_stop_when_its_fleet_died_is_not_started_again(
    working: Working, jobs: WorkerJobs
) -> None:
    await working.tenant("acme")
    job = await jobs.ask("acme", "test")
    dead = Taking(working.administration)
    await until(lambda: bool(dead.pids))
    await dead.vanish()
    await jobs.stop(str(job.id), "test")
    async with taking(working.administration) as heir:
        await until(lambda: has_stopped(jobs, job))
        assert not heir.started


async def test_a_process_that_dies_is_started_again_and_the_job_says_why(working: Working, jobs: WorkerJobs) -> None:
    await working.tenant("acme")
    job = await jobs.ask("acme", "test")
    async with taking(working.administration) as fleet:
        await until(lambda: len(fleet.pids) == 1)
        fleet.started[0].exit_code = 137
        await until(lambda: len(fleet.started) == 2)
        await until_running(jobs, job, [fleet.started[1].pid])
        problem = (await jobs.get(str(job.id))).problem
        assert problem == "its process ended with exit code 137: it is out of memory"


async def test_the_job_of_an_erased_tenant_ends(working: Working, jobs: WorkerJobs) -> None:
    await working.tenant("acme")
    await jobs.ask("acme", "test")
    async with taking(working.administration) as fleet:
        await until(lambda: len(fleet.pids) == 1)
        await working.administration.delete("acme", "test")
        await until(lambda: not fleet.pids)
        assert await jobs.newest(10) == []


async def test_a_job_of_another_application_is_left_alone(working: Working, jobs: WorkerJobs) -> None:
    await working.tenant("acme")
    other = await jobs.ask("acme", "test", app="billing")
    ours = await jobs.ask("acme", "test", app="shop")
    async with taking(working.administration, "shop") as fleet:
        await until(lambda: len(fleet.pids) == 1)
        await until_running(jobs, ours, fleet.pids)
        assert (await jobs.get(str(other.id))).state == "waiting"


async def test_tenants_whose_plan_says_so_get_a_worker_each_from_one_fleet(working: Working, jobs: WorkerJobs) -> None:
    for name in ("acme", "globex", "initech"):
        await working.tenant(name)
    paying = ["acme", "globex"]
    async with (
        taking(working.administration, dedicated=lambda: paying) as first,
        taking(working.administration, dedicated=lambda: paying) as second,
    ):
        await until(lambda: len(first.pids) + len(second.pids) == 2)
        listed = await jobs.newest(10)
        assert {(each.tenant_id, each.origin, each.asked_by) for each in listed} == {
            ("acme", "plan", "plan:pro"),
            ("globex", "plan", "plan:pro"),
        }
        paying.remove("acme")
        await until(lambda: len(first.pids) + len(second.pids) == 1)


async def test_what_was_asked_is_checked_and_recorded(working: Working, jobs: WorkerJobs) -> None:
    await working.tenant("acme")
    with pytest.raises(TenantNotFound):
        await jobs.ask("nobody", "ann")
    with pytest.raises(TenantInvalid, match="expected count to be 1 to 100, got: 0"):
        await jobs.ask("acme", "ann", count=0)
    job = await jobs.ask("acme", "ann")
    assert (await jobs.get(str(job.id)[:8])) == job
    assert (await jobs.stop(str(job.id)[:8], "bob")).state == "stopped"
    with pytest.raises(TenantConflict, match="has stopped already"):
        await jobs.stop(str(job.id), "bob")
    with pytest.raises(TenantNotFound, match="there is no job"):
        await jobs.get("00000000")
    newest = (await working.administration.audit.newest())[:2]
    assert [(each.act, each.actor, each.tenant_id) for each in newest] == [
        ("worker.stop", "bob", "acme"),
        ("worker.start", "ann", "acme"),
    ]


async def has_stopped(jobs: WorkerJobs, job: WorkerJob) -> bool:
    return (await jobs.get(str(job.id))).state == "stopped"
