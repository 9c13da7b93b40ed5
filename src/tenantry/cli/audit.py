"""`tenantry audit list` and `verify`."""

from __future__ import annotations

import re
import sys
from typing import Annotated, Any

from cyclopts import Parameter, validators

from tenantry.cli.options import DEFAULT, Options
from tenantry.cli.output import format_time, print_json, print_table, say
from tenantry.cli.session import administer
from tenantry.errors import AuditBroken, TenantInvalid
from tenantry.tenants.audit import AuditEntry

_SEAL = re.compile(r"\d{1,18}:[0-9a-f]{64}")
_UNREMARKABLE = ("updated_at", "ready")


def list_entries(
    *,
    tenant: str | None = None,
    limit: Annotated[int, Parameter(validator=validators.Number(gte=1, lte=100_000))] = 50,
    json: bool = False,
    options: Options = DEFAULT,
) -> None:
    """List what was done, by whom and when, the newest first.

    Parameters
    ----------
    tenant
        Only what concerns this tenant, even if it is gone.
    limit
        So many entries at most.
    json
        Print one JSON document, which has everything as it was before and after.
    """
    entries = administer(options, lambda administration: administration.audit.newest(limit, tenant=tenant))
    if json:
        return print_json(entries)
    if not entries:
        return say("Nothing was done yet.")
    rows = [
        (str(each.number), format_time(each.at), each.actor, each.act, each.tenant_id or "-", _gist(each))
        for each in entries
    ]
    print_table(("number", "at", "by", "act", "tenant", "what"), rows)


def verify(*, expect: str = "", json: bool = False, options: Options = DEFAULT) -> None:
    """Check that the audit log is what was written. Exit status 1 if it is not.

    Parameters
    ----------
    expect
        A seal that was noted down earlier: the log must still contain it. Without one, rows that were cut off the end
        by somebody who put the log's head right as well are not missed.
    json
        Print one JSON document.
    """
    if expect and not _SEAL.fullmatch(expect):
        raise TenantInvalid(
            "expect", f"expected --expect to be a seal that this command printed, NUMBER:HEX, got: {expect!r}"
        )
    try:
        seal = administer(options, lambda administration: administration.audit.verify(expect))
    except AuditBroken as problem:
        if not json:
            raise
        print_json({"intact": False, "problem": str(problem)})
        sys.exit(1)
    if json:
        return print_json({"intact": True, "rows": seal.number, "seal": str(seal)})
    say(f"OK: all {seal.number:,} rows are what was written.")
    say(f"The newest seal, to note down elsewhere and check with --expect later:  {seal}")


def _gist(entry: AuditEntry) -> str:
    """What an act changed, in a few words."""
    before, after = entry.before or {}, entry.after or {}
    if not before or not after:
        about = {name: (before or after).get(name) for name in ("name", "kind", "plan", "tier")}
        return ", ".join(f"{name} {value}" for name, value in about.items() if isinstance(value, str))
    changed = [name for name in after if after[name] != before.get(name) and name not in _UNREMARKABLE]
    return ", ".join(_change(name, before.get(name), after[name]) for name in changed)


def _change(name: str, before: Any, after: Any) -> str:
    if all(isinstance(value, str | int | float) for value in (before, after)):
        return f"{name} {before} → {after}"
    return name
