"""`tenantry tenant show`: one tenant, with all that a person may want to know of it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from tenantry.cli.limits import format_limits
from tenantry.cli.options import DEFAULT, Options
from tenantry.cli.output import format_time, print_json, print_table, say
from tenantry.cli.session import administer
from tenantry.tenants.administration import Administration
from tenantry.tenants.lanes import Lane, Lanes
from tenantry.tenants.moves import Move
from tenantry.tenants.quantities import format_duration
from tenantry.tenants.tenant import Tenant


@dataclass(frozen=True)
class Sight:
    """A tenant and what belongs to it, at one moment."""

    tenant: Tenant
    lanes: list[tuple[Lane, str]]
    """With where the stream is."""
    move: Move | None
    credentials: int
    """Those that are valid."""

    def describe(self) -> dict[str, Any]:
        document = self.tenant.describe()
        for lane, _ in self.lanes:
            document["channels"][lane.channel] |= {
                "stream": lane.stream,
                "shared": lane.is_shared,
                "account": lane.account,
                "subjects": lane.subjects,
            }
        return document | {"move": self.move.describe() if self.move else None, "credentials": self.credentials}


def show(id: str, /, *, json: bool = False, options: Options = DEFAULT) -> None:
    """Show a tenant: its limits, its channels and where they are, and what is under way.

    Parameters
    ----------
    id
        The tenant.
    json
        Print one JSON document.
    """
    sight = administer(options, lambda administration: _look(administration, id))
    if json:
        return print_json(sight.describe())
    tenant = sight.tenant
    _show_facts(sight)
    say("")
    kept = {each.name: format_duration(tenant.retention_of(each)) for each in tenant.channels}
    rows = [(lane.channel, kept[lane.channel], lane.stream, where) for lane, where in sight.lanes]
    print_table(("channel", "retention", "stream", "where"), rows)
    say("")
    limits = [
        (name, value, "this tenant" if name in tenant.overrides else f"plan {tenant.plan}")
        for name, value in format_limits(tenant.limits).items()
    ]
    print_table(("limit", "value", "from"), limits)


def place_of(lane: Lane, lanes: Lanes) -> str:
    """Where a lane's stream is, in words."""
    if not lanes.has_accounts:
        return "shared stream" if lane.is_shared else "stream of its own"
    if lane.account != lanes.platform_account:
        return "stream of its own, in an account of its own"
    return f"{'shared stream' if lane.is_shared else 'stream of its own'}, in the platform's account"


async def _look(administration: Administration, id: str) -> Sight:
    tenant = await administration.registry.get(id)
    lanes = administration.lanes
    now = datetime.now(UTC)
    held = await administration.credentials.of(id)
    valid = [each for each in held if not each.revoked_at and not (each.expires_at and each.expires_at < now)]
    return Sight(
        tenant,
        [(lane, place_of(lane, lanes)) for lane in lanes.lanes(tenant)],
        await administration.moves.unfinished(id),
        len(valid),
    )


def _show_facts(sight: Sight) -> None:
    tenant, move = sight.tenant, sight.move
    removing = [channel.name for channel in tenant.channels if channel.removing]
    facts = {
        "tenant": tenant.id,
        "name": tenant.name,
        "status": f"{tenant.status}, {'ready' if tenant.is_ready else 'not ready'}",
        "problem": tenant.problem or ("" if tenant.is_ready else "the servers do not have all of it yet"),
        "plan": tenant.plan,
        "tier": tenant.tier,
        "move": _describe_move(move) if move else "",
        "erasing": ", ".join(removing),
        "cluster": tenant.placement.cluster,
        "tags": ", ".join(tenant.placement.tags),
        "lake": tenant.placement.lake,
        "credentials": f"{sight.credentials} valid",
        "created": format_time(tenant.created_at),
    }
    for name, value in facts.items():
        if value:
            say(f"{name:<12} {value}")


def _describe_move(move: Move) -> str:
    how_far = f"to {move.to_tier}, {move.stage} since {format_time(move.started_at)}"
    return f"{how_far}; {move.problem}" if move.problem else how_far
