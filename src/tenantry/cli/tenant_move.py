"""`tenantry tenant move`."""

from __future__ import annotations

from typing import Any

from rich.progress import TaskID

from tenantry.cli.options import DEFAULT, Options
from tenantry.cli.output import print_json, print_table, progress, say
from tenantry.cli.session import actor, administer
from tenantry.cli.tenant_show import place_of
from tenantry.errors import TenantInvalid
from tenantry.tenants.administration import Administration
from tenantry.tenants.lanes import at_tier
from tenantry.tenants.moves import Move
from tenantry.tenants.tenant import Tenant, Tier


def move(
    id: str,
    /,
    *,
    to: Tier | None = None,
    dry_run: bool = False,
    abandon: bool = False,
    json: bool = False,
    options: Options = DEFAULT,
) -> None:
    """Move a tenant to a tier above, while it goes on publishing. A move that was broken off is carried on.

    Parameters
    ----------
    id
        The tenant.
    to
        The tier. Not needed to carry on a move that was broken off.
    dry_run
        Show what would be done, and do nothing.
    abandon
        Give up a move that is still copying; the tenant stays where it is.
    json
        Print one JSON document.
    """
    if dry_run:
        plan = administer(options, lambda administration: _plan(administration, id, to))
        return print_json(plan) if json else _show_plan(plan)
    if abandon:
        tenant = administer(options, lambda administration: administration.abandon_move(id, actor()))
        return print_json(tenant.describe()) if json else say(f"{id} stays in the tier {tenant.tier}")
    done = administer(options, lambda administration: _move(administration, id, to))
    if json:
        return print_json(done.describe())
    say(f"{id} has moved from {done.from_tier} to {done.to_tier}; its credentials are valid as before")
    rows = [(each.channel, each.to_stream, f"{each.last:,}", f"{each.resumes_at:,}") for each in done.lanes]
    print_table(("channel", "stream", "last sequence", "goes on at"), rows)


async def _plan(administration: Administration, id: str, to: Tier | None) -> dict[str, Any]:
    target = await _target(administration, id, to)
    steps = await administration.plan_move(id, target)
    tenant = await administration.registry.get(id)
    moved = at_tier(tenant, target)
    return {
        "tenant": id,
        "from_tier": tenant.tier,
        "to_tier": target,
        "lanes": [
            {
                "channel": step.channel,
                "from_stream": step.from_stream,
                "from_place": _place(administration, tenant, step.channel),
                "to_stream": step.to_stream,
                "to_place": _place(administration, moved, step.channel),
            }
            for step in steps
        ],
        "credentials": "stay valid",
    }


def _show_plan(plan: dict[str, Any]) -> None:
    say(f"{plan['tenant']} would move from {plan['from_tier']} to {plan['to_tier']}:")
    columns = ("channel", "from_stream", "from_place", "to_stream", "to_place")
    rows = [[lane[column] for column in columns] for lane in plan["lanes"]]
    print_table(("channel", "from stream", "where", "to stream", "where"), rows)
    say("Events keep their order and sequence. Producers go on; for a moment their publishes have to be repeated.")
    say("Credentials stay valid, and durable consumers go on where they were.")


async def _move(administration: Administration, id: str, to: Tier | None) -> Move:
    target = await _target(administration, id, to)
    with progress() as bars:
        tasks: dict[str, TaskID] = {}

        def copied(channel: str, so_far: int, of: int) -> None:
            if channel not in tasks:
                tasks[channel] = bars.add_task(f"copy {channel}")
            bars.update(tasks[channel], completed=so_far, total=of)

        return await administration.move(id, target, actor(), copied)


async def _target(administration: Administration, id: str, to: Tier | None) -> Tier:
    under_way = None if to else await administration.moves.unfinished(id)
    target = under_way.to_tier if under_way else to
    if target is None:
        await administration.registry.get(id)
        raise TenantInvalid("to", f"expected --to TIER, one of {', '.join(Tier)}; no move of tenant {id} is under way")
    return target


def _place(administration: Administration, tenant: Tenant, channel: str) -> str:
    found = tenant.channel(channel)
    assert found is not None
    return place_of(administration.lanes.lane(tenant, found), administration.lanes)
