"""`tenantry pipeline list`, `show`, `resume`, `jobs` and `cancel`."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter, validators

from tenantry.cli.job_waiting import describe
from tenantry.cli.options import DEFAULT, Options
from tenantry.cli.output import format_time, print_json, print_table, say
from tenantry.cli.session import actor, administer
from tenantry.pipelines.job_desk import Job, JobDesk
from tenantry.pipelines.lane_desk import LaneDesk


def list_pipelines(*, json: bool = False, options: Options = DEFAULT) -> None:
    """List the pipelines and projections that have read events, and how many of their lanes are parked.

    Parameters
    ----------
    json
        Print one JSON document.
    """
    found = administer(options, lambda administration: LaneDesk(administration).pipelines())
    if json:
        return print_json(found)
    if not found:
        return say("No pipeline has read an event yet; `tenantry up` and `tenantry serve pipeline` run them.")
    rows = [
        (each.pipeline, f"{each.tenants:,}", f"{each.lanes:,}", f"{each.parked:,}", format_time(each.updated_at))
        for each in found
    ]
    print_table(("pipeline", "tenants", "lanes", "parked", "last moved"), rows)


def show(
    name: str,
    /,
    *,
    tenant: str | None = None,
    json: bool = False,
    options: Options = DEFAULT,
) -> None:
    """Show how far a pipeline is on each lane, those that are parked first, and why they are.

    Parameters
    ----------
    name
        The pipeline or projection.
    tenant
        Only this tenant's lanes, and of those that are parked where in the code it failed.
    json
        Print one JSON document.
    """
    lanes = administer(options, lambda administration: LaneDesk(administration).lanes(name, tenant))
    if json:
        return print_json(lanes)
    rows = [
        (
            lane.tenant_id,
            lane.channel,
            f"{lane.sequence:,}",
            format_time(lane.updated_at),
            format_time(lane.parked_at),
            "-" if lane.parked_sequence is None else f"{lane.parked_sequence:,}",
            lane.parked_reason or "-",
        )
        for lane in lanes
    ]
    print_table(("tenant", "channel", "sequence", "last moved", "parked", "at sequence", "because of"), rows)
    for lane in lanes:
        if tenant and lane.parked_traceback:
            say("")
            say(f"{lane.tenant_id}/{lane.channel}, sequence {lane.parked_sequence}:")
            say(lane.parked_traceback.rstrip())


def resume(
    tenant: str,
    name: str,
    /,
    *,
    channel: str | None = None,
    json: bool = False,
    options: Options = DEFAULT,
) -> None:
    """Let a pipeline go on where it is parked, with the event that it failed on: first put right what was wrong.

    Parameters
    ----------
    tenant
        The tenant.
    name
        The pipeline or projection.
    channel
        Only this channel; all that are parked, if left out.
    json
        Print one JSON document.
    """
    resumed = administer(
        options, lambda administration: LaneDesk(administration).resume(tenant, name, channel, actor())
    )
    if json:
        return print_json(resumed)
    for each in resumed:
        say(f"{name} goes on with what comes after sequence {each.sequence:,} of {tenant}/{each.channel}")


def jobs(
    *,
    limit: Annotated[int, Parameter(validator=validators.Number(gte=1, lte=100_000))] = 20,
    json: bool = False,
    options: Options = DEFAULT,
) -> None:
    """List replays and rebuilds, the newest first.

    Parameters
    ----------
    limit
        So many at most.
    json
        Print one JSON document.
    """
    found = administer(options, lambda administration: JobDesk(administration).newest(limit))
    if json:
        return print_json([describe(job) for job in found])
    if not found:
        return say("Nothing was replayed or rebuilt yet.")
    columns = ("job", "asked", "by", "what", "pipeline", "tenant", "state", "done", "problem")
    print_table(columns, [_row(job) for job in found])


def cancel(job: str, /, *, json: bool = False, options: Options = DEFAULT) -> None:
    """Cancel a replay or a rebuild. What a rebuild has made aside is removed; what a replay has done stays.

    Parameters
    ----------
    job
        Its id, or the beginning of it.
    json
        Print one JSON document.
    """
    found = administer(options, lambda administration: JobDesk(administration).cancel(job, actor()))
    if json:
        return print_json(describe(found))
    say(f"{found.id} is {found.state}")


def _row(job: Job) -> tuple[str, ...]:
    return (
        str(job.id)[:8],
        format_time(job.asked_at),
        job.asked_by,
        job.kind,
        job.pipeline,
        job.tenant_id or "all",
        job.state,
        f"{job.done:,} of {job.total:,}" if job.total is not None else "-",
        job.problem or "-",
    )
