"""`tenantry worker list`, `start` and `stop`."""

from __future__ import annotations

from typing import Annotated, Final

from cyclopts import Parameter, validators

from tenantry.cli.options import DEFAULT, Options
from tenantry.cli.output import format_time, print_json, print_table, say
from tenantry.cli.session import actor, administer
from tenantry.subscriptions.roll_reader import Present, RollReader
from tenantry.subscriptions.worker_jobs import MOST_PROCESSES, WorkerJob, WorkerJobs
from tenantry.tenants.administration import Administration

JOBS_SHOWN: Final = 20


def list_workers(*, json: bool = False, options: Options = DEFAULT) -> None:
    """List the workers that are there, and the jobs that gave tenants workers of their own.

    Parameters
    ----------
    json
        Print one JSON document.
    """
    workers, jobs = administer(options, _look)
    if json:
        described = {"workers": [each.describe() for each in workers], "jobs": [each.describe() for each in jobs]}
        return print_json(described)
    if workers:
        columns = ("worker", "app", "there for", "host", "pid", "partitions", "running", "lag", "handled")
        print_table(columns, [_row(each) for each in workers])
    else:
        say("No worker is there; `tenantry serve worker` runs one.")
    if jobs:
        say("")
        columns = ("job", "asked", "by", "tenant", "count", "state", "host", "pids", "problem")
        print_table(columns, [_job_row(job) for job in jobs])


def start(
    *,
    tenant: str,
    count: Annotated[int, Parameter(validator=validators.Number(gte=1, lte=MOST_PROCESSES))] = 1,
    for_app: str = "",
    json: bool = False,
    options: Options = DEFAULT,
) -> None:
    """Start workers for one tenant alone, in a fleet that runs: `tenantry serve worker --max 8`, or `tenantry up`.

    Parameters
    ----------
    tenant
        Whom they are for.
    count
        So many processes.
    for_app
        Only in a fleet of the application with this name; in any, if left out.
    json
        Print one JSON document.
    """
    job = administer(
        options,
        lambda administration: WorkerJobs(administration).ask(tenant, actor(), count=count, app=for_app),
    )
    if json:
        return print_json(job.describe())
    say(f"{job.id} waits for a fleet to take it; `tenantry worker list` shows when one has")


def stop(job: str, /, *, json: bool = False, options: Options = DEFAULT) -> None:
    """Stop the workers of a job. They drain, and others handle the tenant's events.

    Parameters
    ----------
    job
        Its id, or the beginning of it.
    json
        Print one JSON document.
    """
    found = administer(options, lambda administration: WorkerJobs(administration).stop(job, actor()))
    if json:
        return print_json(found.describe())
    say(f"{found.id} is {found.state}")


async def _look(administration: Administration) -> tuple[list[Present], list[WorkerJob]]:
    reader = RollReader(administration.lanes.app, administration.lanes.platform)
    await reader.start()
    try:
        return reader.present(), await WorkerJobs(administration).newest(JOBS_SHOWN)
    finally:
        await reader.stop()


def _row(present: Present) -> tuple[str, ...]:
    member = present.member
    counts = [f"{member.load.get(name, 0):,}" for name in ("partitions", "running", "lag", "handled")]
    there_for = [*sorted(member.tenants), *(f"plan {plan}" for plan in sorted(member.plans))]
    return (member.id, member.app or "-", ", ".join(there_for) or "all", member.host, str(member.pid), *counts)


def _job_row(job: WorkerJob) -> tuple[str, ...]:
    return (
        str(job.id)[:8],
        format_time(job.asked_at),
        job.asked_by,
        job.tenant_id,
        str(job.count),
        job.state,
        job.host or "-",
        ", ".join(map(str, job.pids)) or "-",
        job.problem or "-",
    )
