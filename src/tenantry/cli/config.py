"""`tenantry config show`."""

from __future__ import annotations

from tenantry.cli.options import DEFAULT, Options
from tenantry.cli.output import console, print_json, print_table


def show(*, json: bool = False, options: Options = DEFAULT) -> None:
    """Show every setting, its value with secrets hidden, and where it came from.

    Parameters
    ----------
    json
        Print one JSON document instead of a table.
    """
    configuration = options.load()
    rows = configuration.rows()
    if json:
        return print_json(
            {
                "settings": {name: {"value": value, "from": origin} for name, value, origin in rows},
                "unknown_variables": configuration.unknown_variables,
            }
        )
    print_table(("setting", "value", "from"), rows)
    for variable in configuration.unknown_variables:
        console.print(f"[yellow]{variable} is set, but no setting has that name[/]")
