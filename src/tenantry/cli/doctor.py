"""`tenantry doctor`: is this machine fit, and are the servers well? A line each."""

from __future__ import annotations

import asyncio
import sys

from rich.markup import escape

from tenantry.cli.options import DEFAULT, Options
from tenantry.cli.output import console, print_json
from tenantry.embedded.checkup import Checkup, Finding, State

MARKS = {State.OK: "[green]OK[/]  ", State.IDLE: "[dim]--[/]  ", State.WRONG: "[red]FIX[/] "}


def doctor(*, json: bool = False, options: Options = DEFAULT) -> None:
    """Check Python, Java and its modules, disk, ports, servers and versions. Exit code 1 if anything needs fixing.

    Parameters
    ----------
    json
        Print one JSON document.
    """
    findings = asyncio.run(Checkup(options.load()).run())
    if json:
        print_json([{"name": each.name, "state": each.state.value, "detail": each.detail} for each in findings])
    else:
        for finding in findings:
            _print(finding)
    if any(finding.state is State.WRONG for finding in findings):
        sys.exit(1)


def _print(finding: Finding) -> None:
    line = f"{MARKS[finding.state]} [bold]{finding.name:<12}[/] {escape(finding.detail)}"
    console.print(line, soft_wrap=True)
