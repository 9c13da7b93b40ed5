"""`tenantry outbox status` and `events`."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Annotated, Any, TypeVar

import msgspec
from cyclopts import Parameter, validators

from tenantry.cli.options import DEFAULT, Options
from tenantry.cli.outbox_session import use_outbox
from tenantry.cli.output import format_time, print_json, print_table, say
from tenantry.outbox.status import EventStatus, Holder, LaneStatus, OutboxStatus, Partition, State, read_status
from tenantry.outbox.status import list_events as read_events
from tenantry.postgres.queries import Connection
from tenantry.tenants.quantities import format_size

LANES_NAMED = 3

Result = TypeVar("Result")


def status(*, tenant: str | None = None, json: bool = False, options: Options = DEFAULT) -> None:
    """Show what waits in the outbox, lane by lane, and which open transactions hold it back.

    Parameters
    ----------
    tenant
        Only this tenant's lanes, even if nothing waits there.
    json
        Print one JSON document.
    """
    found = _ask(options, lambda connection: read_status(connection, tenant))
    if json:
        return print_json(_describe(found))
    _show_totals(found)
    shown = [lane for lane in found.lanes if tenant or lane.pending or lane.attempts or lane.dead_letters]
    if shown:
        say("")
        columns = ("tenant", "channel", "pending", "oldest", "attempts", "next attempt", "dead letters", "waits for")
        print_table(columns, [_lane_row(lane) for lane in shown])
    if found.holders:
        say("")
        say("Open transactions that have emitted, and what has to wait for them:")
        rows = [_holder_row(holder) for holder in found.holders]
        print_table(("process", "application", "role", "state", "open for", "lanes"), rows)
    say("")
    print_table(("partition", "from", "until", "size"), [_partition_row(each) for each in found.partitions])


def list_events(
    tenant: str,
    /,
    *,
    state: State | None = None,
    limit: Annotated[int, Parameter(validator=validators.Number(gte=1, lte=100_000))] = 50,
    json: bool = False,
    options: Options = DEFAULT,
) -> None:
    """List what a tenant's events in the outbox have become, the newest first.

    Parameters
    ----------
    tenant
        The tenant.
    state
        Only those that are pending, published or failed.
    limit
        So many at most.
    json
        Print one JSON document.
    """
    events = _ask(options, lambda connection: read_events(connection, tenant, state, limit))
    if json:
        return print_json(events)
    if not events:
        return say(f"The outbox has no {f'{state} ' if state else ''}events of tenant {tenant}.")
    columns = ("emitted", "channel", "type", "id", "state", "published", "attempts", "last error")
    print_table(columns, [_event_row(event) for event in events])


def _ask(options: Options, question: Callable[[Connection], Awaitable[Result]]) -> Result:
    async def run() -> Result:
        async with use_outbox(options.load().settings) as connection:
            return await question(connection)

    return asyncio.run(run())


def _describe(status: OutboxStatus) -> dict[str, Any]:
    totals = {
        "pending": status.pending,
        "is_more": status.is_more,
        "oldest": status.oldest,
        "dead_letters": status.dead_letters,
    }
    document: dict[str, Any] = msgspec.to_builtins(status)
    return totals | document


def _show_totals(status: OutboxStatus) -> None:
    waiting = sum(1 for lane in status.lanes if lane.pending)
    facts = {
        "pending": f"{_count(status.pending, status.is_more)} in {waiting:,} of {len(status.lanes):,} lanes",
        "oldest": _age(status.oldest) if status.oldest else "",
        "dead letters": f"{status.dead_letters:,}",
        "relays": f"{status.relays:,}" if status.relays else "none runs; `tenantry up` and `tenantry serve relay` do",
    }
    for name, value in facts.items():
        if value:
            say(f"{name:<13} {value}")


def _lane_row(lane: LaneStatus) -> tuple[str, ...]:
    return (
        lane.tenant_id,
        lane.channel if lane.is_open else f"{lane.channel} (closed)",
        _count(lane.pending, lane.is_more),
        _age(lane.oldest),
        str(lane.attempts or "-"),
        format_time(lane.retry_at),
        str(lane.dead_letters or "-"),
        lane.reason or "-",
    )


def _holder_row(holder: Holder) -> tuple[str, ...]:
    named = holder.lanes[:LANES_NAMED]
    more = [f"{len(holder.lanes) - LANES_NAMED:,} more"] if len(holder.lanes) > LANES_NAMED else []
    return (
        str(holder.pid or "prepared"),
        holder.application_name or "-",
        holder.role or "-",
        holder.state or "-",
        _age(holder.began_at),
        "all" if holder.holds_every_lane else ", ".join([*named, *more]),
    )


def _partition_row(partition: Partition) -> tuple[str, ...]:
    return (
        partition.name,
        format_time(partition.starts_at),
        format_time(partition.ends_at),
        format_size(partition.bytes),
    )


def _event_row(event: EventStatus) -> tuple[str, ...]:
    return (
        format_time(event.created_at),
        event.channel,
        event.type,
        event.id,
        event.state,
        format_time(event.published_at),
        str(event.attempts),
        event.last_error or "-",
    )


def _count(number: int, is_more: bool) -> str:
    return f"{number}+" if is_more else f"{number:,}"


def _age(moment: datetime | None) -> str:
    if moment is None:
        return "-"
    seconds = max(0, round((datetime.now(UTC) - moment).total_seconds()))
    for size, unit in ((86_400, "d"), (3600, "h"), (60, "m")):
        if seconds >= 2 * size:
            return f"{seconds // size}{unit}"
    return f"{seconds}s"
