"""`tenantry dlq redrive` and `discard`: first what it would be about, then the act."""

from __future__ import annotations

import msgspec

from tenantry.cli.confirmation import confirm
from tenantry.cli.dead_letter import one_line
from tenantry.cli.dead_letter_filters import ALL, Filters
from tenantry.cli.job_waiting import describe, exit_by, tell, wait_for_ends, watch_for_interrupt
from tenantry.cli.options import DEFAULT, Options
from tenantry.cli.output import note, print_json, print_table, say
from tenantry.cli.session import actor, administer
from tenantry.subscriptions.dead_letter_desk import Act, DeadLetterDesk, Outcome, Preview
from tenantry.subscriptions.found_letter import DeadLetterFilter
from tenantry.subscriptions.job_desk import SubscriptionJobDesk
from tenantry.tenants.administration import Administration


def redrive(
    *ids: str,
    filters: Filters = ALL,
    dry_run: bool = False,
    yes: bool = False,
    detach: bool = False,
    json: bool = False,
    options: Options = DEFAULT,
) -> None:
    """Have dead letters handled again, in order. What fails again stays. Shows first which they are, and asks.

    Of a key that is held back, those that came before are redriven, too. Ctrl-C cancels the rest.

    Parameters
    ----------
    ids
        Their ids, or the beginnings of them; all that the filters fit, if left out.
    dry_run
        Show which they are, and do nothing.
    yes
        Do not ask.
    detach
        Do not wait for it.
    json
        Print one JSON document.
    """
    _run("redrive", ids, filters, options, dry_run=dry_run, yes=yes, detach=detach, json=json)


def discard(
    *ids: str,
    filters: Filters = ALL,
    dry_run: bool = False,
    yes: bool = False,
    detach: bool = False,
    json: bool = False,
    options: Options = DEFAULT,
) -> None:
    """Do away with dead letters for good; what they held back goes on. Shows first which they are, and asks.

    Parameters
    ----------
    ids
        Their ids, or the beginnings of them; all that the filters fit, if left out.
    dry_run
        Show which they are, and do nothing.
    yes
        Do not ask.
    detach
        Do not wait for it.
    json
        Print one JSON document.
    """
    _run("discard", ids, filters, options, dry_run=dry_run, yes=yes, detach=detach, json=json)


def _run(
    act: Act,
    ids: tuple[str, ...],
    filters: Filters,
    options: Options,
    *,
    dry_run: bool,
    yes: bool,
    detach: bool,
    json: bool,
) -> None:
    async def look(administration: Administration) -> tuple[DeadLetterFilter, Preview]:
        desk = DeadLetterDesk(administration)
        wanted = filters.read([(await desk.get(id)).id for id in ids])
        return wanted, await desk.preview(act, wanted)

    async def perform(administration: Administration) -> Outcome:
        desk = DeadLetterDesk(administration)
        do = desk.redrive if act == "redrive" else desk.discard
        if detach:
            return await do(_as_seen(wanted, preview), actor())
        interrupted = watch_for_interrupt()
        outcome = await do(_as_seen(wanted, preview), actor())
        ended = await wait_for_ends(SubscriptionJobDesk(administration), outcome.jobs, interrupted)
        return Outcome(discarded=outcome.discarded, jobs=ended)

    wanted, preview = administer(options, look)
    if not json:
        _show(act, preview)
    outcome = Outcome(discarded=0, jobs=[])
    if preview.count and not dry_run:
        confirm(f"to {act} {_count(preview.count)}", act, yes=yes)
        outcome = administer(options, perform)
    if json:
        jobs = [describe(job) for job in outcome.jobs]
        print_json({"preview": preview, "discarded": outcome.discarded, "jobs": jobs})
    else:
        _tell(outcome)
    exit_by(outcome.jobs)


def _tell(outcome: Outcome) -> None:
    if outcome.discarded:
        say(f"{_count(outcome.discarded)} discarded")
    for job in outcome.jobs:
        tell(job, SubscriptionJobDesk.listing)


def _as_seen(wanted: DeadLetterFilter, preview: Preview) -> DeadLetterFilter:
    """Without what has died since somebody looked."""
    until = min(wanted.until or preview.as_of, preview.as_of)
    return msgspec.structs.replace(wanted, until=until)


def _show(act: Act, preview: Preview) -> None:
    if not preview.count:
        say(f"There is nothing to {act}.")
    else:
        rows = [(each.service, each.tenant_id, f"{each.count:,}", one_line(each.reason)) for each in preview.groups]
        print_table(("service", "tenant", "count", "reason"), rows)
        if rest := preview.count - sum(each.count for each in preview.groups):
            say(f"… and {rest:,} for other reasons")
        say(f"{_count(preview.count)} to {act}")
    if preview.added:
        note(f"{preview.added:,} of them come before others with the same key, and so are handled before them.")
    if preview.under_way:
        note(f"{_count(preview.under_way)} more left out: workers are at them, or at what they wait for.")
    if preview.left_out:
        note(
            f"{_count(preview.left_out)} of pipelines left out, which have gone on without them: "
            "`tenantry replay --pipeline NAME` reads their events again."
        )


def _count(number: int) -> str:
    return f"{number:,} dead letter" + ("" if number == 1 else "s")
