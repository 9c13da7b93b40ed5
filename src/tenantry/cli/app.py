"""The commands and what each is for. Kept free of everything that takes time to import."""

from __future__ import annotations

from cyclopts import App, Group, Parameter

RUN = Group("Run", sort_key=1)
INSPECT = Group("Look inside", sort_key=2)

app = App(
    name="tenantry",
    help="Event pipelines for many tenants on one platform: no tenant can slow, read or lose another's events.",
    version_flags=["--version"],
    default_parameter=Parameter(negative=()),
)
app.command(
    "tenantry.cli.up:up", group=RUN, help="Run the whole platform on this machine, with embedded servers by default."
)
app.command(
    "tenantry.cli.migrate:migrate",
    group=RUN,
    help="Bring the database schema up to date. Safe to run at any time, and from several places at once.",
)
app.command("tenantry.cli.doctor:doctor", group=INSPECT, help="Check this machine and the servers, a line each.")
app.command(
    "tenantry.cli.bench:bench",
    group=INSPECT,
    help="Measure against the usual way of doing it, in one run. Without a name: list the benchmarks.",
)

config = App(name="config", group=INSPECT, help="The settings and where they come from.")
config.command("tenantry.cli.config:show", help="Show every setting, its value and where it came from.")
app.command(config)
