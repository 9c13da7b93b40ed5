"""`tenantry tenant drift`."""

from __future__ import annotations

import sys

import msgspec

from tenantry.cli.options import DEFAULT, Options
from tenantry.cli.output import print_json, print_table, say
from tenantry.cli.session import administer
from tenantry.tenants.drift import Drift, Kind


def drift(*, repair: bool = False, json: bool = False, options: Options = DEFAULT) -> None:
    """Compare what the servers have with what is wanted. Exit status 1 if something of ours is not as it should be.

    Parameters
    ----------
    repair
        Put right what is missing or changed. What is not Tenantry's, or belongs to no tenant, is never touched.
    json
        Print one JSON document.
    """
    found = administer(
        options, lambda administration: administration.drift.repair() if repair else administration.drift.find()
    )
    if json:
        print_json(found)
    elif not found:
        say("The servers have what is wanted.")
    else:
        print_table(("what", "name", "tenant", "drift", "details"), [_row(each) for each in found])
    if any(not each.repaired and each.kind != Kind.FOREIGN for each in found):
        sys.exit(1)


def _row(drift: Drift) -> tuple[str, ...]:
    state = f"{drift.kind}, repaired" if drift.repaired else str(drift.kind)
    return drift.what, drift.name, drift.tenant or "-", state, _details(drift)


def _details(drift: Drift) -> str:
    """A few words each; JSON has the whole."""
    words = []
    for name, value in drift.details.items():
        if isinstance(value, dict) and value.keys() == {"found", "wanted"}:
            found, wanted = (_short(value[key]) for key in ("found", "wanted"))
            words.append(f"{name} is {found}, wanted {wanted}" if found and wanted else name)
        else:
            words.append(f"{name} {value}" if name != "problem" else str(value))
    return "; ".join(words)


def _short(value: object) -> str:
    text = msgspec.json.encode(value).decode()
    return text if len(text) <= 40 else ""
