"""Moves of tenants between tiers: begun by a request, carried out behind it."""

from __future__ import annotations

import asyncio
from datetime import datetime
from typing import Annotated
from uuid import UUID

import msgspec
from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, ConfigDict, Field

from tenantry.api.access import GuardedRoute, Tenants, allow
from tenantry.api.documents import TenantDocument
from tenantry.api.parameters import TenantId
from tenantry.api.problems import describe_problems
from tenantry.errors import TenantNotFound
from tenantry.service import end
from tenantry.tenants.administration import Administration
from tenantry.tenants.moves import Move, Stage
from tenantry.tenants.principal import Principal
from tenantry.tenants.tenant import Tier

router = APIRouter(
    prefix="/v1/tenants/{id}/move",
    tags=["moves"],
    route_class=GuardedRoute,
    responses=describe_problems(400, 401, 403, 404, 409, 422),
)


class BackgroundMoves:
    """Moves that this process carries out. One that is broken off stays on record, and is carried on later."""

    def __init__(self, administration: Administration) -> None:
        self._administration = administration
        self._tasks: set[asyncio.Task[None]] = set()

    async def begin(self, tenant: str, to: Tier, actor: str) -> Move:
        """Return once the move is on record."""
        move = await self._administration.begin_move(tenant, to, actor)
        task = asyncio.create_task(self._administration.mover.carry_on(tenant), name=f"move {tenant}")
        self._tasks.add(task)
        task.add_done_callback(self._forget)
        return move

    async def close(self) -> None:
        await end(list(self._tasks))

    def _forget(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            # Looked at, so that asyncio does not complain: `tenants.moved` has told it.
            task.exception()


class WantedMove(BaseModel):
    model_config = ConfigDict(extra="forbid")

    to: Tier = Field(description="the tier to move to, above the present one")
    dry_run: bool = Field(False, description="only say what would be done")


class LaneMoveDocument(BaseModel):
    """One channel's way. Every event keeps its sequence."""

    channel: str
    from_stream: str
    to_stream: str
    last: int = Field(description="the newest sequence in the old stream")
    resumes_at: int = Field(description="the first sequence that a new event can have")


class PlannedMove(BaseModel):
    """What a move would do."""

    tenant_id: str
    from_tier: Tier
    to_tier: Tier
    lanes: list[LaneMoveDocument]


class MoveDocument(PlannedMove):
    """A move, and how far it is."""

    id: UUID
    stage: Stage = Field(description="`done` at the end")
    problem: str = Field(description="why it does not get on, if it does not; it is tried again by itself")
    started_at: datetime
    finished_at: datetime | None


@router.post("", response_model=PlannedMove, responses={202: {"model": MoveDocument, "description": "Begun."}})
async def move_tenant(
    tenants: Tenants,
    caller: Annotated[Principal, allow("tenants:write")],
    id: TenantId,
    body: WantedMove,
    request: Request,
) -> Response:
    """Move a tenant to a tier above, while its producers go on publishing. GET shows how far it is."""
    if body.dry_run:
        tenant, lanes = await tenants.registry.get(id), await tenants.plan_move(id, body.to)
        planned = {
            "tenant_id": id,
            "from_tier": tenant.tier,
            "to_tier": body.to,
            "lanes": msgspec.to_builtins(lanes),
        }
        return _json(PlannedMove.model_validate(planned), 200)
    moves: BackgroundMoves = request.app.state.moves
    response = _json(_document(await moves.begin(id, body.to, caller.actor)), 202)
    response.headers["Location"] = f"/v1/tenants/{id}/move"
    return response


@router.get("")
async def get_move(tenants: Tenants, _: Annotated[Principal, allow("tenants:read")], id: TenantId) -> MoveDocument:
    """See a tenant's newest move."""
    await tenants.registry.get(id)
    move = await tenants.moves.newest(id)
    if move is None:
        raise TenantNotFound(f"tenant {id} has never been moved")
    return _document(move)


@router.delete("")
async def abandon_move(
    tenants: Tenants, caller: Annotated[Principal, allow("tenants:write")], id: TenantId
) -> TenantDocument:
    """Give up a move that is still copying; the tenant stays where it is."""
    return TenantDocument.of(await tenants.abandon_move(id, caller.actor))


def _document(move: Move) -> MoveDocument:
    return MoveDocument.model_validate(move.describe())


def _json(document: BaseModel, status: int) -> Response:
    return Response(document.model_dump_json(), status, media_type="application/json")
