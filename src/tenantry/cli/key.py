"""`tenantry key create`, `list` and `revoke`: keys for the HTTP API."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from tenantry.cli.options import DEFAULT, Options
from tenantry.cli.output import format_time, note, print_json, print_table, say
from tenantry.cli.session import actor, administer
from tenantry.tenants.api_keys import ApiKey
from tenantry.tenants.principal import SCOPES
from tenantry.tenants.quantities import parse_duration


def create(
    *,
    name: str,
    scope: Annotated[
        tuple[str, ...], Parameter(required=True, help=f"What it may do: {', '.join(SCOPES)}. Can be repeated.")
    ],
    tenant: str | None = None,
    expires: str | None = None,
    json: bool = False,
    options: Options = DEFAULT,
) -> None:
    """Create a key for the HTTP API. It alone is printed, once, and kept nowhere: KEY=$(tenantry key create …).

    Parameters
    ----------
    name
        What to call it.
    tenant
        The one tenant that it is for; all of them, if left out.
    expires
        How long it is valid, like 90d; for good, if left out.
    json
        Print one JSON document.
    """
    lifetime = parse_duration("--expires", expires) if expires else None
    key, text = administer(
        options,
        lambda administration: administration.keys.create(
            actor(), name=name, scopes=list(scope), tenant=tenant, lifetime=lifetime
        ),
    )
    if json:
        return print_json(key.describe() | {"key": text})
    print(text, flush=True)
    note(f"key {key.id} is above; it is shown this once")


def list_keys(*, json: bool = False, options: Options = DEFAULT) -> None:
    """List the keys, without their secrets.

    Parameters
    ----------
    json
        Print one JSON document.
    """
    keys = administer(options, lambda administration: administration.keys.list())
    if json:
        return print_json([key.describe() | {"state": _state(key)} for key in keys])
    if not keys:
        return say("There is no key yet; `tenantry key create --name NAME --scope SCOPE` makes one.")
    rows = [
        (
            key.id,
            key.name,
            key.tenant_id or "all",
            ", ".join(key.scopes),
            format_time(key.created_at),
            format_time(key.expires_at),
            _state(key),
        )
        for key in keys
    ]
    print_table(("key", "name", "tenant", "scopes", "created", "expires", "state"), rows)


def revoke(id: str, /, *, json: bool = False, options: Options = DEFAULT) -> None:
    """Refuse a key from now on.

    Parameters
    ----------
    id
        The key's id, which `key list` shows.
    json
        Print one JSON document.
    """
    key = administer(options, lambda administration: administration.keys.revoke(id, actor()))
    if json:
        return print_json(key.describe())
    say(f"key {key.id} ({key.name}) is revoked")


def _state(key: ApiKey) -> str:
    return "revoked" if key.revoked_at else "valid" if key.is_valid else "expired"
