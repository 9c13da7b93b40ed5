"""`tenantry tenant create`, `set`, `list`, `suspend`, `resume` and `delete`."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from tenantry.cli.confirmation import confirm
from tenantry.cli.options import DEFAULT, Options
from tenantry.cli.output import note, print_json, print_table, say
from tenantry.cli.session import actor, administer
from tenantry.cli.tenant_flags import NOTHING, TenantFlags
from tenantry.cli.tenant_import import import_tenants
from tenantry.cli.tenant_put import Outcome, put
from tenantry.errors import TenantInvalid
from tenantry.tenants.administration import Administration
from tenantry.tenants.quantities import format_duration
from tenantry.tenants.spec import TenantSpec
from tenantry.tenants.tenant import Status, Tenant, Tier


def create(
    id: Annotated[str, Parameter(help="The tenant: lower case letters, digits and dashes.")] = "",
    /,
    *,
    flags: TenantFlags = NOTHING,
    file: Annotated[Path | None, Parameter(allow_leading_hyphen=True)] = None,
    json: bool = False,
    options: Options = DEFAULT,
) -> None:
    """Create a tenant, or change it to what the flags say; or do so for many at once.

    Parameters
    ----------
    file
        Many tenants, a JSON object a line; - is standard input. Fields: id, name, plan, tier, overrides, placement,
        channels, without_channels.
    json
        Print one JSON document.
    """
    if bool(id) == bool(file) or (file and flags.are_given):
        raise TenantInvalid(
            "id", "expected an ID with flags, or --file alone, like: tenantry tenant create acme --plan pro"
        )
    if file:
        return import_tenants(options, file, json=json)
    tenant, outcome = administer(options, lambda tenants: put(tenants, id, lambda before: flags.spec(id, before)))
    _show_put(tenant, outcome, json=json)


def set_(
    id: str,
    /,
    *,
    flags: TenantFlags = NOTHING,
    no_channel: Annotated[tuple[str, ...], Parameter(name="--no-channel")] = (),
    unset_limit: tuple[str, ...] = (),
    yes: bool = False,
    json: bool = False,
    options: Options = DEFAULT,
) -> None:
    """Change a tenant that exists.

    Parameters
    ----------
    id
        The tenant.
    no_channel
        A channel to erase, with all that it holds. Can be repeated.
    unset_limit
        A limit that is to be the plan's again. Can be repeated.
    yes
        Do not ask before a channel is erased.
    json
        Print one JSON document.
    """
    if no_channel:
        confirm(f"erasing {_channels(no_channel)} of tenant {id} with all events", id, yes=yes)

    def spec(before: Tenant | None) -> TenantSpec:
        missing = [name for name in no_channel if before and before.channel(name) is None]
        if missing:
            raise TenantInvalid("no_channel", f"tenant {id} has no {_channels(missing)} that could be erased")
        return flags.spec(id, before, no_channel=no_channel, unset_limit=unset_limit)

    tenant, outcome = administer(options, lambda tenants: put(tenants, id, spec, must_exist=True))
    _show_put(tenant, outcome, json=json)


def list_tenants(
    *,
    status: Status | None = None,
    plan: str | None = None,
    tier: Tier | None = None,
    json: bool = False,
    options: Options = DEFAULT,
) -> None:
    """List the tenants, or those that are asked for.

    Parameters
    ----------
    status
        Only those with this status.
    plan
        Only those on this plan.
    tier
        Only those in this tier.
    json
        Print one JSON document.
    """
    tenants = administer(options, lambda administration: _list(administration, status, plan, tier))
    if json:
        return print_json([tenant.describe() for tenant in tenants])
    if not tenants:
        wanted = status or plan or tier
        return say(
            "There is no such tenant." if wanted else "There is no tenant yet; `tenantry tenant create ID` makes one."
        )
    print_table(("tenant", "name", "plan", "tier", "status", "channels"), [_row(tenant) for tenant in tenants])


def suspend(id: str, /, *, json: bool = False, options: Options = DEFAULT) -> None:
    """Cut a tenant's publishing and consumption at once, and keep its data.

    Parameters
    ----------
    id
        The tenant.
    json
        Print one JSON document.
    """
    tenant = administer(options, lambda tenants: tenants.suspend(id, actor()))
    _show(tenant, "suspended", "it can neither publish nor consume, and its data is kept", json=json)


def resume(id: str, /, *, json: bool = False, options: Options = DEFAULT) -> None:
    """Let a suspended tenant publish and consume again.

    Parameters
    ----------
    id
        The tenant.
    json
        Print one JSON document.
    """
    tenant = administer(options, lambda tenants: tenants.resume(id, actor()))
    _show(tenant, "active", "it can publish and consume", json=json)


def delete(id: str, /, *, yes: bool = False, json: bool = False, options: Options = DEFAULT) -> None:
    """Erase a tenant and all that it has, everywhere. The audit log keeps that it was done.

    Parameters
    ----------
    id
        The tenant.
    yes
        Do not ask.
    json
        Print one JSON document.
    """
    confirm(f"erasing tenant {id} with all its events and credentials", id, yes=yes)
    administer(options, lambda tenants: tenants.delete(id, actor()))
    if json:
        return print_json({"id": id, "outcome": "deleted"})
    say(f"{id} is erased")


async def _list(
    administration: Administration, status: Status | None, plan: str | None, tier: Tier | None
) -> list[Tenant]:
    tenants: list[Tenant] = []
    after = ""
    while page := await administration.registry.page(after=after, status=status, plan=plan, tier=tier):
        tenants += page
        after = page[-1].id
    return tenants


def _row(tenant: Tenant) -> tuple[str, ...]:
    status = str(tenant.status) if tenant.is_ready else f"{tenant.status}, not ready"
    return tenant.id, tenant.name, tenant.plan, tenant.tier, status, _kept(tenant)


def _kept(tenant: Tenant) -> str:
    """The channels, and for how long each keeps its events."""
    kept = [each for each in tenant.channels if not each.removing]
    return ", ".join(f"{each.name} {format_duration(tenant.retention_of(each))}" for each in kept)


def _show_put(tenant: Tenant, outcome: Outcome, *, json: bool) -> None:
    about = f"plan {tenant.plan}, tier {tenant.tier}, channels {_kept(tenant)}"
    _show(tenant, outcome, about, json=json, outcome=outcome)


def _show(tenant: Tenant, state: str, meaning: str, *, json: bool, **more: Any) -> None:
    """Say what was done; exit status 1 if the servers do not have it yet."""
    if json:
        print_json(more | tenant.describe())
    elif tenant.is_ready:
        say(f"{tenant.id} is {state}: {meaning}")
    if not tenant.is_ready:
        note(
            f"tenantry: {tenant.id} is recorded as {state}, and the servers do not have all of it yet: "
            f"{tenant.problem or 'they are at it'}; `tenantry tenant show {tenant.id}` says when they do"
        )
        sys.exit(1)


def _channels(names: Iterable[str]) -> str:
    listed = list(names)
    return f"channel{'s' if len(listed) > 1 else ''} {', '.join(listed)}"
