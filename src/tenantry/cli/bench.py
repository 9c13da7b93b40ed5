"""`tenantry bench NAME`."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from tenantry.bench import BENCHMARKS, run_benchmark
from tenantry.cli.output import console, print_json, print_table
from tenantry.errors import TenantryError


def bench(
    name: Annotated[str, Parameter(help="What to measure.", show_default=False)] = "",
    /,
    *,
    quick: bool = False,
    json: bool = False,
) -> None:
    """Measure one part of Tenantry beside the usual way of doing it. Without a name, list the benchmarks.

    Parameters
    ----------
    quick
        Less load; the whole run stays under 50 seconds.
    json
        End with one JSON line: {"bench": …, "figures": {…}, "ratios": {…}}.
    """
    if not name:
        return print_table(("benchmark", "measures"), [(each, about) for each, (_, about) in BENCHMARKS.items()])
    if name not in BENCHMARKS:
        raise TenantryError(f"expected a benchmark, one of {', '.join(BENCHMARKS)}, got: {name}")
    report = run_benchmark(name, quick=quick, say=_stay_silent if json else console.print)
    if json:
        return print_json(report)
    print_table(("figure", ""), [(key, f"{value:,.0f}") for key, value in report.figures.items()])
    print_table(("ratio", ""), [(key, f"{value:.2f}") for key, value in report.ratios.items()])


def _stay_silent(_: str) -> None:
    """Programs read the JSON line alone."""
