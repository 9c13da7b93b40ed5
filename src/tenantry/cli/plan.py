"""`tenantry plan list`, `show`, `set` and `delete`."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from cyclopts import Parameter

from tenantry.cli.limits import RETENTION, format_limits, parse_limits
from tenantry.cli.options import DEFAULT, Options
from tenantry.cli.output import print_json, print_table, say
from tenantry.cli.session import actor, administer
from tenantry.errors import TenantInvalid, TenantNotFound
from tenantry.tenants.administration import Administration
from tenantry.tenants.plans import Plan
from tenantry.tenants.reconciler import Reconciler

COLUMNS = ("retention", "storage", "publish_rate", "connections", "consumers")


def list_plans(*, json: bool = False, options: Options = DEFAULT) -> None:
    """List the plans with their most important limits.

    Parameters
    ----------
    json
        Print one JSON document.
    """
    plans = administer(options, lambda administration: administration.registry.plans())
    if json:
        return print_json([_describe(plan, tenants) for plan, tenants in plans])
    rows = []
    for plan, tenants in plans:
        limits = format_limits(plan.limits)
        rows.append((plan.name, f"{tenants:,}", *(limits[column] for column in COLUMNS)))
    print_table(("plan", "tenants", *COLUMNS), rows)


def show(name: str, /, *, json: bool = False, options: Options = DEFAULT) -> None:
    """Show all limits of a plan.

    Parameters
    ----------
    name
        The plan.
    json
        Print one JSON document.
    """
    plan, tenants = administer(options, lambda administration: _get(administration, name))
    if json:
        return print_json(_describe(plan, tenants))
    say(f"plan {name}, with {_count(tenants)}")
    print_table(("limit", "value"), list(format_limits(plan.limits).items()))


def set_plan(
    name: str,
    /,
    *,
    limit: tuple[str, ...] = (),
    source: Annotated[str | None, Parameter(name="--from")] = None,
    json: bool = False,
    options: Options = DEFAULT,
) -> None:
    """Create a plan or change it. What is left out stays as it is; its tenants follow.

    Parameters
    ----------
    name
        The plan.
    limit
        A limit, NAME=VALUE, like storage=10GiB, publish_rate=500, retention=7d or, for one channel,
        retention.events=30d. Can be repeated.
    source
        Take all other limits from this plan.
    json
        Print one JSON document.
    """
    given = parse_limits(limit)
    before, plan, tenants = administer(options, lambda administration: _set(administration, name, given, source))
    outcome = "created" if before is None else "unchanged" if before == plan else "changed"
    if json:
        return print_json({"outcome": outcome} | _describe(plan, tenants))
    say(f"plan {name} is {outcome}{f', and {_count(tenants)} with it' if outcome == 'changed' and tenants else ''}")


def delete(name: str, /, *, json: bool = False, options: Options = DEFAULT) -> None:
    """Delete a plan that no tenant is on.

    Parameters
    ----------
    name
        The plan.
    json
        Print one JSON document.
    """
    administer(options, lambda administration: administration.delete_plan(name, actor()))
    if json:
        return print_json({"name": name, "outcome": "deleted"})
    say(f"plan {name} is deleted")


async def _get(administration: Administration, name: str) -> tuple[Plan, int]:
    plans = await administration.registry.plans()
    for plan, tenants in plans:
        if plan.name == name:
            return plan, tenants
    known = ", ".join(plan.name for plan, _ in plans)
    raise TenantNotFound(f"there is no plan {name!r}, only {known}")


async def _set(
    administration: Administration, name: str, given: dict[str, Any], source: str | None
) -> tuple[Plan | None, Plan, int]:
    """The plan as it was, as it is, and how many tenants it has."""
    found = [(plan, tenants) for plan, tenants in await administration.registry.plans() if plan.name == name]
    before, tenants = found[0] if found else (None, 0)
    if source:
        taken = msgspec.to_builtins((await _get(administration, source))[0].limits)
        given = taken | given | {RETENTION: taken[RETENTION] | given.get(RETENTION, {})}
    try:
        plan = await administration.put_plan(name, given, actor())
    except TenantInvalid as problem:
        if problem.field != "limits" and not (problem.field == RETENTION and before is None and source is None):
            raise
        raise TenantInvalid(
            problem.field,
            f"{problem}; there is no plan {name!r} yet, and a new one needs all its limits: take them over with --from "
            f"pro, and change some with --limit",
        ) from None
    # Whether or not somebody looks after tenants all the time.
    await Reconciler(administration).finish_all()
    return before, plan, tenants


def _describe(plan: Plan, tenants: int) -> dict[str, Any]:
    return {"name": plan.name, "tenants": tenants, "limits": msgspec.to_builtins(plan.limits)}


def _count(tenants: int) -> str:
    return f"{tenants:,} tenant{'' if tenants == 1 else 's'}"
