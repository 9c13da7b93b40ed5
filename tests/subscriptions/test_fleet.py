"""A fleet of processes: as many as there is work for, and none that outlives it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import psutil
import pytest

from tenantry.cli import serve
from tenantry.errors import ConfigError
from tenantry.subscriptions.worker_jobs import WorkerJobs
from tenantry.testing import TestPlatform
from tests.outbox.relays import place_of
from tests.own_server import OwnServer
from tests.subscriptions.fleets import RunningFleet, running_fleet
from tests.subscriptions.working import Working, until


async def test_a_fleet_grows_with_what_waits_and_shrinks_when_little_does(working: Working, tmp_path: Path) -> None:
    names = await working.tenants(8)
    hurry = ("--min", "1", "--max", "3", "--drain-target", "0.5", "--patience", "1")
    async with running_fleet(working.administration, tmp_path, *hurry, TENANTRY_WORKER_SLOTS="1") as fleet:
        await fleet.until_there(1)
        for count, workers in ((10, 2), (20, 3)):
            for name in names:
                await working.publish(name, count)
            await fleet.until_started(workers)
        await fleet.until_there(1)
        fleet.process.terminate()
        assert await asyncio.to_thread(fleet.process.wait, 20) == 0, fleet.output
        await until(lambda: not fleet.present())


async def test_a_worker_that_was_killed_is_replaced(working: Working, tmp_path: Path) -> None:
    async with running_fleet(working.administration, tmp_path, "--min", "2") as fleet:
        await fleet.until_there(2)
        killed, kept = fleet.workers
        killed.kill()
        await fleet.until(lambda: killed.pid not in [each.pid for each in fleet.workers])
        await fleet.until_there(2)
        assert kept in fleet.workers
        assert "subscriptions.process_died" in fleet.output


async def test_no_worker_outlives_a_fleet_that_was_killed(working: Working, tmp_path: Path) -> None:
    await working.tenant("acme")
    async with running_fleet(working.administration, tmp_path, "--max", "2") as fleet:
        await fleet.until_there(1)
        workers = fleet.workers
        fleet.process.kill()
        await asyncio.to_thread(psutil.wait_procs, workers, 20)
        assert not any(each.is_running() for each in workers)


async def test_a_fleet_goes_on_when_the_broker_and_the_database_are_back(
    own_nats: OwnServer, platform: TestPlatform, tmp_path: Path
) -> None:
    async with place_of(own_nats, platform, tmp_path) as place:
        working = Working(place.administration)
        await working.tenant("acme")
        async with running_fleet(place.administration, tmp_path, "--min", "2") as fleet:
            await fleet.until_there(2)
            own_nats.kill()
            await fleet.until(lambda: not fleet.present())
            async with place.administration.pool.connection() as connection:
                await connection.execute(
                    """select pg_terminate_backend(pid) from pg_stat_activity
                       where datname = current_database() and pid <> pg_backend_pid()"""
                )
            await own_nats.start()
            await fleet.until_there(2)
            job = await WorkerJobs(place.administration).ask("acme", "test")
            await fleet.until(lambda: partitions(fleet).get("acme") == 1)
            await until(lambda: is_in_state(WorkerJobs(place.administration), job.id, "running"))


async def test_a_job_gives_a_tenant_a_worker_of_its_own_until_it_is_stopped(working: Working, tmp_path: Path) -> None:
    await working.tenants(3)
    jobs = WorkerJobs(working.administration)
    async with running_fleet(working.administration, tmp_path, "--min", "1") as fleet:
        await fleet.until(lambda: partitions(fleet) == {"": 3})
        job = await jobs.ask("t001", "test")
        await fleet.until(lambda: partitions(fleet) == {"": 2, "t001": 1})

        async def runs() -> bool:
            found = await jobs.get(str(job.id))
            return found.state == "running" and len(found.pids) == 1

        await until(runs)
        (dedicated,) = [each.member for each in fleet.present() if each.member.tenants]
        assert (await jobs.get(str(job.id))).pids == [dedicated.pid]
        assert (await jobs.stop(str(job.id), "test")).state == "stopping"
        await fleet.until(lambda: partitions(fleet) == {"": 3})
        await until(lambda: is_in_state(jobs, job.id, "stopped"))


async def test_tenants_whose_plan_says_so_have_a_worker_each(working: Working, tmp_path: Path) -> None:
    await working.tenants(2)
    await working.tenant("acme", dedicated=True)
    async with running_fleet(working.administration, tmp_path, "--min", "1", "--dedicated") as fleet:
        await fleet.until(lambda: partitions(fleet) == {"": 2, "acme": 1})


async def test_a_job_whose_worker_cannot_start_says_why(working: Working, tmp_path: Path) -> None:
    await working.tenant("broke")
    jobs = WorkerJobs(working.administration)
    job = await jobs.ask("broke", "test")
    async with running_fleet(working.administration, tmp_path, "--min", "1") as fleet:
        await until(lambda: is_in_state(jobs, job.id, "failed"))
        assert "there is no licence for broke" in (await jobs.get(str(job.id))).problem
        assert "there is no licence for broke" in fleet.output
        await fleet.until_there(1)
    # Whoever comes next may have it.
    assert (await jobs.get(str(job.id))).state == "waiting"


def test_bounds_that_make_no_sense_are_refused() -> None:
    with pytest.raises(ConfigError, match="expected --max to be at least --min, which is 3, got: 2"):
        serve.worker(min=3, max=2)
    with pytest.raises(ConfigError, match="expected --min or --max beside --dedicated"):
        serve.worker(dedicated=True)


def partitions(fleet: RunningFleet) -> dict[str, int]:
    """How many partitions those have that are there for everybody, and those for one tenant."""
    counts: dict[str, int] = {}
    for each in fleet.present():
        place = ",".join(each.member.tenants)
        counts[place] = counts.get(place, 0) + each.member.load["partitions"]
    return counts


async def is_in_state(jobs: WorkerJobs, id: object, state: str) -> bool:
    return (await jobs.get(str(id))).state == state
