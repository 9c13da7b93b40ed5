"""`tenantry subscription list`, `show`, `delete`, `jobs` and `cancel`."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter, validators

from tenantry.cli.confirmation import confirm
from tenantry.cli.dead_letter import one_line
from tenantry.cli.job_waiting import describe
from tenantry.cli.options import DEFAULT, Options
from tenantry.cli.output import format_time, print_json, print_table, say
from tenantry.cli.session import actor, administer
from tenantry.subscriptions.job_desk import SubscriptionJob, SubscriptionJobDesk
from tenantry.subscriptions.subscription_desk import SubscriptionDesk


def list_subscriptions(*, json: bool = False, options: Options = DEFAULT) -> None:
    """List the services that workers have served, and for how many tenants they are paused.

    Parameters
    ----------
    json
        Print one JSON document.
    """
    found = administer(options, lambda administration: SubscriptionDesk(administration).all())
    if json:
        return print_json(found)
    if not found:
        return say("No worker has served anything yet; `tenantry up` and `tenantry serve worker` run them.")
    rows = [
        (
            each.service,
            each.channel,
            ", ".join(each.types),
            each.handling_order,
            str(each.parts),
            f"{len(each.pauses):,}",
            f"{each.dead_letters:,}",
            format_time(each.seen_at),
        )
        for each in found
    ]
    columns = ("service", "channel", "types", "order", "parts", "paused for", "dead letters", "last seen")
    print_table(columns, rows)


def show(service: str, /, *, json: bool = False, options: Options = DEFAULT) -> None:
    """Show a service: what it handles and how, and for whom it is paused.

    Parameters
    ----------
    service
        The service.
    json
        Print one JSON document.
    """
    found = administer(options, lambda administration: SubscriptionDesk(administration).get(service))
    if json:
        return print_json(found)
    facts = {
        "service": found.service,
        "application": found.app,
        "channel": found.channel,
        "types": ", ".join(found.types),
        "order": found.handling_order,
        "after the last retry": found.after_last_retry,
        "parts": str(found.parts),
        "dead letters": f"{found.dead_letters:,}",
        "first seen": format_time(found.created_at),
        "last seen": format_time(found.seen_at),
    }
    width = max(map(len, facts))
    for name, value in facts.items():
        say(f"{name.ljust(width)}  {value}")
    if found.pauses:
        say("")
        rows = [(each.tenant_id, format_time(each.paused_at), each.paused_by) for each in found.pauses]
        print_table(("paused for", "since", "by"), rows)


def delete(service: str, /, *, yes: bool = False, json: bool = False, options: Options = DEFAULT) -> None:
    """Forget a service: its consumers on all streams, its pauses and its dead letters. Stop its workers first.

    Parameters
    ----------
    service
        The service. If a worker serves it again, it begins anew.
    yes
        Do not ask.
    json
        Print one JSON document.
    """
    confirm(f"to forget how far {service} is with each tenant, and its dead letters", service, yes=yes)
    done = administer(options, lambda administration: SubscriptionDesk(administration).forget(service, actor()))
    if json:
        return print_json(done)
    say(
        f"{service} is forgotten, with {done.consumers:,} consumers, {done.pauses:,} pauses and "
        f"{done.dead_letters:,} dead letters"
    )


def jobs(
    *,
    tenant: str | None = None,
    service: str | None = None,
    limit: Annotated[int, Parameter(validator=validators.Number(gte=1, lte=100_000))] = 20,
    json: bool = False,
    options: Options = DEFAULT,
) -> None:
    """List redrives, discards, replays and rewinds, the newest first.

    Parameters
    ----------
    tenant
        Only those for this tenant alone.
    service
        Only those of this service.
    limit
        So many at most.
    json
        Print one JSON document.
    """
    found = administer(
        options,
        lambda administration: SubscriptionJobDesk(administration).newest(limit, tenant=tenant, service=service),
    )
    if json:
        return print_json([describe(job) for job in found])
    if not found:
        return say("Nothing was redriven or replayed yet.")
    columns = ("job", "asked", "by", "what", "service", "tenant", "state", "done", "failed", "problem")
    print_table(columns, [_row(job) for job in found])


def cancel(job: str, /, *, json: bool = False, options: Options = DEFAULT) -> None:
    """Cancel a redrive, a discard, a replay or a rewind. What it has done stays, and so does what it has not reached.

    Parameters
    ----------
    job
        Its id, or the beginning of it.
    json
        Print one JSON document.
    """
    found = administer(options, lambda administration: SubscriptionJobDesk(administration).cancel(job, actor()))
    if json:
        return print_json(describe(found))
    say(f"{found.id} is {found.state}")


def _row(job: SubscriptionJob) -> tuple[str, ...]:
    return (
        str(job.id)[:8],
        format_time(job.asked_at),
        job.asked_by,
        job.kind,
        job.service,
        job.tenant_id or "several",
        job.state,
        f"{job.done:,} of {job.total:,}" if job.total is not None else f"{job.done:,}",
        f"{job.failed:,}",
        one_line(job.problem) or "-",
    )
