"""The HTTP API, put together. It holds no logic: what can be done with tenants, `Administration` does."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.metadata import version
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from tenantry.api import (
    audit,
    channels,
    credentials,
    dead_letters,
    drift,
    endpoints,
    health,
    hooks,
    keys,
    moves,
    plans,
    projections,
    schemas,
    subscription_jobs,
    subscriptions,
    tenants,
    worker_jobs,
    workers,
)
from tenantry.api.access import Doorkeeper
from tenantry.api.callers import Callers
from tenantry.api.deliveries import Deliveries
from tenantry.api.edge import Edge
from tenantry.api.health import Checks
from tenantry.api.hooks import AccountEvent, ProvisioningHook
from tenantry.api.ingest import Front, IngestDoor
from tenantry.api.ingest_description import describe_ingest
from tenantry.api.moves import BackgroundMoves
from tenantry.api.problems import Problem, install_problems
from tenantry.api.tokens import Tokens
from tenantry.config import Settings
from tenantry.ingest.intake import Intake, open_intake
from tenantry.ingest.publishers import Publishers
from tenantry.pipelines.documents import Documents
from tenantry.postgres.pool import Pool
from tenantry.subscriptions.dead_letter_desk import DeadLetterDesk
from tenantry.subscriptions.job_desk import SubscriptionJobDesk
from tenantry.subscriptions.push_endpoints import PushEndpoints
from tenantry.subscriptions.subscription_desk import SubscriptionDesk
from tenantry.subscriptions.worker_jobs import WorkerJobs
from tenantry.subscriptions.worker_watch import WorkerWatch
from tenantry.tenants.administration import Administration
from tenantry.tenants.api_keys import ApiKeys
from tenantry.tenants.roster import Roster

DESCRIPTION = """\
Tenants of a Tenantry platform, their channels, credentials and plans, their events, the endpoints that these are
pushed to, the documents made of them, and the services and workers that handle them.

Every error is a problem document (RFC 9457). What belongs to a tenant that the caller may not see is answered as if it
did not exist. 202 says that a change is recorded and completed by itself.
"""


def build_app(
    administration: Administration,
    *,
    keys: ApiKeys,
    tokens: Tokens | None,
    settings: Settings,
    roster: Roster | None = None,
    outbox: Pool | None = None,
) -> Front:
    """`roster`: one that somebody keeps up to date, else there is one here. `outbox`: the database that has the outbox,
    if it is not the platform's."""
    background = BackgroundMoves(administration)
    doorkeeper = Doorkeeper(keys, tokens)
    watch = WorkerWatch(administration.lanes.app, administration.lanes.platform)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with open_intake(
            roster or Roster(administration.registry, administration.lanes),
            administration.pool,
            outbox or administration.pool,
            administration.audit,
            publishers=Publishers(administration.lanes.platform),
            keep_roster=roster is None,
        ) as app.state.intake:
            yield
            await background.close()
            await watch.close()

    def intake() -> Intake:
        opened: Intake = app.state.intake
        return opened

    app = FastAPI(
        title="Tenantry",
        version=version("tenantry"),
        description=DESCRIPTION,
        lifespan=lifespan,
        redirect_slashes=False,
        # Their pages load scripts from elsewhere.
        docs_url=None,
        redoc_url=None,
        generate_unique_id_function=lambda route: route.name,
    )
    app.state.administration = administration
    app.state.keys = keys
    app.state.doorkeeper = doorkeeper
    app.state.moves = background
    app.state.endpoints = PushEndpoints.from_settings(settings, administration)
    app.state.documents = Documents(administration.pool)
    app.state.subscriptions = SubscriptionDesk(administration)
    app.state.subscription_jobs = SubscriptionJobDesk(administration)
    app.state.dead_letters = DeadLetterDesk(administration)
    app.state.workers = watch
    app.state.worker_jobs = WorkerJobs(administration)
    app.state.checks = Checks(administration)
    app.state.hook = ProvisioningHook.from_settings(settings, Deliveries(str(administration.pool.conninfo)))
    for router in _ROUTERS:
        app.include_router(router)
    install_problems(app)
    app.add_middleware(Edge)
    app.openapi = lambda: _describe(app)  # type: ignore[method-assign]
    return Front(app, IngestDoor(intake, Callers(doorkeeper)))


_ROUTERS = (
    tenants.router,
    channels.router,
    moves.router,
    credentials.router,
    schemas.router,
    endpoints.router,
    projections.router,
    subscriptions.router,
    subscription_jobs.router,
    dead_letters.router,
    workers.router,
    worker_jobs.router,
    plans.router,
    keys.router,
    audit.router,
    drift.router,
    hooks.router,
    health.router,
)


def _describe(app: FastAPI) -> dict[str, Any]:
    """The OpenAPI document, with the models that no route names as its own."""
    if app.openapi_schema is None:
        document = get_openapi(title=app.title, version=app.version, description=app.description, routes=app.routes)
        schemas = document["components"]["schemas"]
        for model in (Problem, AccountEvent):
            schema = model.model_json_schema(ref_template="#/components/schemas/{model}")
            schemas |= schema.pop("$defs", {})
            schemas[model.__name__] = schema
        describe_ingest(document)
        app.openapi_schema = document
    return app.openapi_schema
