"""`tenantry serve`: one role in a process of its own, for production."""

from __future__ import annotations

import asyncio
from typing import Annotated, Final

from cyclopts import Parameter, validators

from tenantry.application import load_application
from tenantry.cli.options import DEFAULT, Options
from tenantry.cli.roles import Roles
from tenantry.embedded.platform import EmbeddedPlatform
from tenantry.errors import ConfigError
from tenantry.observe.logs import log_signals
from tenantry.service import run_services
from tenantry.subscriptions.scaling import Bounds, Pace

API_PORT: Final = 8400
PACE: Final = Pace()

Count = Annotated[int, Parameter(validator=validators.Number(gte=1, lte=1000))]
Seconds = Annotated[float, Parameter(validator=validators.Number(gt=0, lte=86_400))]


def api(*, options: Options = DEFAULT) -> None:
    """Serve the HTTP API, and look after tenants: finish what was begun, put drift right. Several may run."""
    settings = options.load().settings
    log_signals(settings)
    platform = EmbeddedPlatform(settings)
    port = API_PORT if settings.api_port is None else settings.api_port
    roles = Roles(platform)
    asyncio.run(run_services([*roles.servers(), *roles.registry(), *roles.control(port)]))


def relay(*, options: Options = DEFAULT) -> None:
    """Carry what is emitted from the outbox to the tenants' streams. Any number may run."""
    settings = options.load().settings
    log_signals(settings)
    roles = Roles(EmbeddedPlatform(settings))
    asyncio.run(run_services([*roles.servers(), *roles.registry(), *roles.relay()]))


def pipeline(*, options: Options = DEFAULT) -> None:
    """Turn events into tables and documents, on Spark. One does it at a time; others wait to take over."""
    settings = options.load().settings
    log_signals(settings)
    application = load_application(settings.app) if settings.app else None
    roles = Roles(EmbeddedPlatform(settings))
    asyncio.run(run_services([*roles.servers(), *roles.registry(), *roles.pipelines(application)]))


def worker(
    *,
    min: Count | None = None,
    max: Count | None = None,
    drain_target: Seconds = PACE.drain_seconds,
    patience: Seconds = PACE.patience_seconds,
    dedicated: bool = False,
    options: Options = DEFAULT,
) -> None:
    """Hand events to the application's subscribers. Any number may run; the tenants are spread over them.

    With --min or --max it is a fleet: so many processes of workers as there is work for, and those that
    `tenantry worker start` asks for.

    Parameters
    ----------
    min
        Run so many workers at least; 1, if only --max is given.
    max
        Run so many workers at most; as many as --min, if that alone is given.
    drain_target
        Run enough workers for what waits to be handled within so many seconds.
    patience
        Let a worker go after fewer were enough for so many seconds.
    dedicated
        Run a worker for each tenant whose plan says `dedicated`, for it alone.
    """
    settings = options.load().settings
    bounds = _read_bounds(min, max, dedicated)
    log_signals(settings)
    application = load_application(settings.app) if settings.app else None
    roles = Roles(EmbeddedPlatform(settings))
    role = roles.worker(application)
    if bounds:
        pace = Pace(drain_seconds=drain_target, patience_seconds=patience)
        role = roles.fleet(application, bounds, pace, with_dedicated=dedicated)
    asyncio.run(run_services([*roles.servers(), *roles.registry(), *role]))


def _read_bounds(least: int | None, most: int | None, dedicated: bool) -> Bounds | None:
    if least is None and most is None:
        if dedicated:
            raise ConfigError("expected --min or --max beside --dedicated: only a fleet has workers for one tenant")
        return None
    bounds = Bounds(least or 1, most or least or 1)
    if bounds.most < bounds.least:
        raise ConfigError(f"expected --max to be at least --min, which is {bounds.least}, got: {bounds.most}")
    return bounds
