"""`tenantry serve`: one role in a process of its own, for production."""

from __future__ import annotations

import asyncio
from typing import Final

from tenantry.application import load_application
from tenantry.cli.options import DEFAULT, Options
from tenantry.cli.roles import Roles
from tenantry.embedded.platform import EmbeddedPlatform
from tenantry.observe.logs import log_signals
from tenantry.service import run_services

API_PORT: Final = 8400


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


def worker(*, options: Options = DEFAULT) -> None:
    """Hand events to the application's subscribers. Any number may run; the tenants are spread over them."""
    settings = options.load().settings
    log_signals(settings)
    application = load_application(settings.app) if settings.app else None
    roles = Roles(EmbeddedPlatform(settings))
    asyncio.run(run_services([*roles.servers(), *roles.registry(), *roles.worker(application)]))
