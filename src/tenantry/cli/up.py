"""`tenantry up`: the whole platform in one process group."""

from __future__ import annotations

import asyncio
import shlex
import sys
import time
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter, validators
from rich.live import Live
from rich.markup import escape
from rich.table import Table

from tenantry.application import load_application
from tenantry.cli.options import DEFAULT, Options
from tenantry.cli.output import console, print_json
from tenantry.cli.role_process import RoleProcess, fleet_process, pipeline_process
from tenantry.cli.roles import Roles
from tenantry.config import Settings, without_secrets
from tenantry.demo import Demo
from tenantry.embedded.platform import EmbeddedPlatform
from tenantry.observe.logs import log_signals
from tenantry.service import Service, forever, run_services

REFRESH_SECONDS = 0.5
PLAIN_REFRESH_SECONDS = 5.0


def up(
    *,
    demo: bool = False,
    seconds: Annotated[float | None, Parameter(validator=validators.Number(gt=0))] = None,
    workers: Annotated[int, Parameter(validator=validators.Number(gte=1, lte=1000))] = 1,
    json: bool = False,
    options: Options = DEFAULT,
) -> None:
    """Run the whole platform on this machine until Ctrl-C: embedded servers, where no others are named, and all roles.

    Parameters
    ----------
    demo
        Add sample tenants, one of them noisy, and load.
    seconds
        End by itself after so many seconds of being ready.
    workers
        Run so many workers at most, if the application has subscribers.
    json
        Print a summary as JSON in the last line.
    """
    settings = options.load().settings
    log_signals(settings)
    summary = asyncio.run(_up(settings, demo, seconds, workers, quiet=json))
    if json:
        print_json(summary)


async def _up(
    settings: Settings, with_demo: bool, seconds: float | None, most_workers: int, quiet: bool
) -> dict[str, Any]:
    platform = EmbeddedPlatform(settings)
    roles = Roles(platform)
    demo = Demo(roles.tenants) if with_demo else None
    # What is wrong with it is better said here than in the log of another process.
    application = load_application(settings.app) if settings.app else None
    pipelines = pipeline_process(platform) if settings.pipelines else None
    workers = fleet_process(platform, most_workers) if application and application.subscribers else None
    face = Face(platform, roles, demo, seconds, quiet, pipelines, workers)
    services: list[Service] = [
        *roles.servers(),
        *roles.registry(),
        *roles.relay(),
        *roles.control(),
        *([pipelines] if pipelines else []),
        # Endpoints can be made at any time; to deliver to them takes none of the application's code.
        *([workers] if workers else roles.worker(None)),
        *([demo] if demo else []),
        face,
    ]
    await run_services(services)
    return face.summary()


class Face:
    """What the person who started it sees, and the end that was asked for."""

    name = "face"

    def __init__(
        self,
        platform: EmbeddedPlatform,
        roles: Roles,
        demo: Demo | None,
        seconds: float | None,
        quiet: bool,
        pipelines: RoleProcess | None,
        workers: RoleProcess | None,
    ) -> None:
        self._pipelines = pipelines
        self._workers = workers
        self._platform = platform
        self._roles = roles
        self._demo = demo
        self._seconds = seconds
        self._quiet = quiet
        self._began = time.monotonic()
        self._ready_after = 0.0

    async def start(self) -> None:
        self._ready_after = time.monotonic() - self._began
        if not self._quiet:
            self._say_ready()

    async def run(self) -> None:
        showing = asyncio.ensure_future(self._show_demo() if self._demo and not self._quiet else forever())
        try:
            await asyncio.wait([showing], timeout=self._seconds)
        finally:
            showing.cancel()
            await asyncio.gather(showing, return_exceptions=True)

    async def stop(self) -> None:
        if not self._quiet:
            console.print("Stopping; a second Ctrl-C does not wait.")

    def kill(self) -> None:
        pass

    def summary(self) -> dict[str, Any]:
        document: dict[str, Any] = {
            "ready_after_seconds": round(self._ready_after, 3),
            "seconds": round(time.monotonic() - self._began, 3),
            "data": str(self._platform.directory.path),
            "nats_url": self._platform.nats.url if self._platform.nats else "external",
            "postgres_port": self._platform.postgres.port if self._platform.postgres else "external",
            "api_url": self._api_url,
        }
        if self._demo:
            document["tenants"] = {tenant.name: tenant.summary() for tenant in self._demo.tenants}
        return document

    def _say_ready(self) -> None:
        platform = self._platform
        console.print(f"[bold green]Tenantry is ready[/] after {self._ready_after:.1f} s. Ctrl-C stops it.")
        nats = "(operator mode, JetStream)" if platform.nats else "(not embedded)"
        postgres = "(database tenantry)" if platform.postgres else "(not embedded)"
        lines = [
            f"  NATS      {escape(without_secrets(platform.broker.url))}  [dim]{nats}[/]",
            f"  Postgres  {escape(self._database_place())}  [dim]{postgres}[/]",
            f"  API       {self._api_url}  [dim](`tenantry key create` makes a key)[/]",
        ]
        if self._pipelines:
            log = escape(str(self._pipelines.child.log))
            lines.append(f"  Spark     starting, for tables and documents  [dim](log: {log})[/]")
        if self._workers:
            log = escape(str(self._workers.child.log))
            lines.append(f"  Workers   starting, for the application's subscribers  [dim](log: {log})[/]")
        if platform.uses_directory:
            shell = escape(_shell_path(platform.environment_file))
            lines.insert(0, f"  data      {escape(str(platform.directory.path))}")
            lines.append(f"  To use them from another shell:  [bold]. {shell}[/]")
        for line in lines:
            console.print(line, soft_wrap=True)

    @property
    def _api_url(self) -> str:
        return self._roles.api.url if self._roles.api else ""

    def _database_place(self) -> str:
        if self._platform.postgres:
            return f"127.0.0.1:{self._platform.postgres.port}"
        return without_secrets(self._platform.database_url)

    async def _show_demo(self) -> None:
        try:
            if sys.stdout.isatty():
                with Live(self._demo_table(), console=console, auto_refresh=False, transient=True) as live:
                    while True:
                        await asyncio.sleep(REFRESH_SECONDS)
                        live.update(self._demo_table(), refresh=True)
            while True:
                await asyncio.sleep(PLAIN_REFRESH_SECONDS)
                console.print(self._demo_table())
        finally:
            console.print(self._demo_table())

    def _demo_table(self) -> Table:
        assert self._demo is not None
        table = Table(box=None, header_style="bold")
        table.add_column("tenant")
        table.add_column("tier")
        for column in ("emitted", "read back", "lag", "to stream p50 ms", "p99 ms"):
            table.add_column(column, justify="right")
        for tenant in self._demo.tenants:
            row = tenant.summary()
            counts = [f"{row[name]:,}" for name in ("emitted", "read", "lag")]
            table.add_row(
                tenant.name, tenant.tier, *counts, *(f"{row['to_stream_ms'][name]:.1f}" for name in ("p50", "p99"))
            )
        return table


def _shell_path(path: str) -> str:
    home = str(Path.home())
    return "~" + shlex.quote(path.removeprefix(home)) if path.startswith(home + "/") else shlex.quote(path)
