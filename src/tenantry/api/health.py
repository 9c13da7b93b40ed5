"""Whether the process lives, and whether it can work."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable
from typing import Final

import psycopg
from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response
from pydantic import BaseModel, Field

from tenantry.api.problems import TYPE_PREFIX, describe_problems, problem_response
from tenantry.errors import TenantryError
from tenantry.tenants.administration import Administration

CHECK_SECONDS: Final = 3.0
KEEP_SECONDS: Final = 1.0
PROBE: Final = "TENANTRY_READINESS"
"""A stream that nobody has: JetStream's answer that there is none is an answer."""

router = APIRouter(tags=["health"])


class Health(BaseModel):
    status: str = Field(description="`ok`")


class Readiness(Health):
    checks: dict[str, bool] = Field(description="each server, and whether it answers")


class Checks:
    """Asks the servers, once for all who want to know at the same time: anybody may ask."""

    def __init__(self, administration: Administration) -> None:
        self._administration = administration
        self._asking = asyncio.Lock()
        self._asked_at = -float("inf")
        self._answers: dict[str, bool] = {}

    async def answers(self) -> dict[str, bool]:
        async with self._asking:
            if time.monotonic() - self._asked_at > KEEP_SECONDS:
                postgres, nats = await asyncio.gather(
                    _succeeds(self._administration.registry.plans()),
                    _succeeds(self._administration.backbone.platform.stream(PROBE)),
                )
                self._answers = {"postgres": postgres, "nats": nats}
                self._asked_at = time.monotonic()
            return self._answers


async def _succeeds(question: Awaitable[object]) -> bool:
    try:
        async with asyncio.timeout(CHECK_SECONDS):
            await question
    except (TenantryError, psycopg.Error, OSError):
        return False
    return True


@router.get("/healthz", responses={500: describe_problems()[500]})
async def live() -> Health:
    """Whether the process lives. It asks no server."""
    return Health(status="ok")


@router.get("/readyz", response_model=Readiness, responses=describe_problems())
async def ready(request: Request) -> Response:
    """Whether PostgreSQL and NATS answer."""
    checks: Checks = request.app.state.checks
    answers = await checks.answers()
    if all(answers.values()):
        return JSONResponse({"status": "ok", "checks": answers})
    silent = " and ".join(name for name, answered in answers.items() if not answered)
    return problem_response(request, 503, f"no answer from {silent}", type=f"{TYPE_PREFIX}unavailable", checks=answers)
