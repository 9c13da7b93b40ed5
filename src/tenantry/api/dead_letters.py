"""Dead letters: events that could not be handled, found, handled again, or done away with."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Final
from uuid import UUID

import msgspec
from fastapi import APIRouter, Depends, Path, Query, Request, Response
from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, JsonValue

from tenantry.api.access import GuardedRoute, allow
from tenantry.api.parameters import TENANT_PATTERN, Limit, TenantFilter
from tenantry.api.problems import describe_problems
from tenantry.api.subscription_jobs import SubscriptionJobDocument
from tenantry.subscriptions.dead_letter_desk import Act, DeadLetterDesk, Outcome
from tenantry.subscriptions.dead_letters import State
from tenantry.subscriptions.found_letter import DeadLetterFilter, Place, WholeLetter
from tenantry.tenants.principal import Principal

MOST_IDS: Final = 1000

Reader = Annotated[Principal, allow("dead-letters:read")]
Writer = Annotated[Principal, allow("dead-letters:write")]

router = APIRouter(
    prefix="/v1/dead-letters",
    tags=["dead letters"],
    route_class=GuardedRoute,
    responses=describe_problems(400, 401, 403, 404, 409, 422),
)


class DeadLetterDocument(BaseModel):
    """An event that could not be handled."""

    id: UUID
    tenant_id: str
    channel: str
    service: str = Field(description="who could not: a service, `push/` and an endpoint, or `pipelines`")
    sequence: int = Field(description="its place in the tenant's stream")
    part: int
    state: State = Field(
        description="`dead`: the service went on; `parked`: what has its key waits; `held`: it waits for such a one; "
        "`stopped`: the service waits"
    )
    subject: str
    event_id: str | None
    type: str | None
    key: str | None
    reason: str
    deliveries: int = Field(description="how often it was tried")
    published_at: datetime
    died_at: datetime
    job: UUID | None = Field(description="the redrive that is at it")


class WholeDeadLetterDocument(DeadLetterDocument):
    payload: JsonValue = Field(description="the event; null if it is not JSON")
    payload_base64: str | None = Field(description="the event, if it is not JSON")
    headers: dict[str, list[str]]
    trace: str | None = Field(description="its `traceparent`")
    traceback: str | None = Field(description="where in the code it failed; null for whoever is bound to a tenant")

    @classmethod
    def of(cls, letter: WholeLetter, caller: Principal) -> WholeDeadLetterDocument:
        document = cls.model_validate(letter.describe())
        # The code is the platform's, and not for its tenants to read.
        return document if caller.tenant is None else document.model_copy(update={"traceback": None})


class DeadLetterPage(BaseModel):
    dead_letters: list[DeadLetterDocument]
    next: str | None = Field(description="`after` for the next page; null on the last one")


class ChosenDeadLetters(BaseModel):
    """Those that all of these fit; what is left out is not asked for."""

    model_config = ConfigDict(extra="forbid")

    tenant: str | None = Field(None, pattern=TENANT_PATTERN, description="whose")
    service: str | None = None
    type: str | None = Field(None, description="events of this type")
    state: State | None = None
    key: str | None = Field(None, description="events with this key")
    event: str | None = Field(None, description="the event with this id")
    reason: str | None = Field(None, description="with this in the reason, in whatever case")
    since: AwareDatetime | None = Field(None, description="that died then or later")
    until: AwareDatetime | None = Field(None, description="that died before; the `as_of` of a dry run")
    ids: list[UUID] | None = Field(None, max_length=MOST_IDS, description="dead letters with these ids")
    dry_run: bool = Field(False, description="only say which they are")

    def to_filter(self, caller: Principal) -> DeadLetterFilter:
        given = self.model_dump(exclude={"dry_run", "ids"})
        return _bound(DeadLetterFilter(**given, ids=None if self.ids is None else tuple(self.ids)), caller)


class DeadLetterGroup(BaseModel):
    service: str
    tenant_id: str
    reason: str
    count: int


class DeadLetterAct(BaseModel):
    """What an act is about, and what has become of it."""

    count: int = Field(description="how many dead letters")
    added: int = Field(
        description="of these, those that nobody named: they come before one that was named, and have its key"
    )
    under_way: int = Field(
        description="those that were named and are not counted: workers are at them, or at what they wait for"
    )
    left_out: int = Field(description="those that were named and are not counted: pipelines cannot redrive them")
    groups: list[DeadLetterGroup] = Field(description="the largest")
    as_of: datetime = Field(description="when they were counted")
    discarded: int = Field(description="how many are gone by now")
    jobs: list[SubscriptionJobDocument] = Field(description="what workers do now: a job for each service")


ACCEPTED: Final[dict[int | str, dict[str, Any]]] = {
    202: {"model": DeadLetterAct, "description": "Workers are at it; the jobs say how far they are."}
}


def _desk(request: Request) -> DeadLetterDesk:
    found: DeadLetterDesk = request.app.state.dead_letters
    return found


Desk = Annotated[DeadLetterDesk, Depends(_desk)]


@router.get("")
async def list_dead_letters(
    desk: Desk,
    caller: Reader,
    tenant: TenantFilter = None,
    service: Annotated[str | None, Query(description="of this service")] = None,
    type: Annotated[str | None, Query(description="events of this type")] = None,
    state: State | None = None,
    key: Annotated[str | None, Query(description="events with this key")] = None,
    event: Annotated[str | None, Query(description="the event with this id")] = None,
    reason: Annotated[str | None, Query(description="with this in the reason, in whatever case")] = None,
    since: Annotated[AwareDatetime | None, Query(description="that died then or later")] = None,
    until: Annotated[AwareDatetime | None, Query(description="that died before")] = None,
    after: Annotated[str | None, Query(max_length=80, description="the `next` of the page before")] = None,
    limit: Limit = 100,
) -> DeadLetterPage:
    """List dead letters, the newest first. Whoever is bound to a tenant sees its own."""
    wanted = DeadLetterFilter(
        tenant=tenant,
        service=service,
        type=type,
        state=state,
        key=key,
        event=event,
        reason=reason,
        since=since,
        until=until,
    )
    found = await desk.page(_bound(wanted, caller), limit + 1, None if after is None else Place.read(after))
    last = found[limit - 1] if len(found) > limit else None
    return DeadLetterPage(
        dead_letters=[DeadLetterDocument.model_validate(msgspec.to_builtins(each)) for each in found[:limit]],
        next=str(Place(last.died_at, last.id)) if last else None,
    )


@router.get("/{letter}")
async def get_dead_letter(
    desk: Desk, caller: Reader, letter: Annotated[UUID, Path(description="the dead letter")]
) -> WholeDeadLetterDocument:
    """See a dead letter whole, with the event as it is."""
    return WholeDeadLetterDocument.of(await desk.get(str(letter), caller.tenant), caller)


@router.post("/redrive", responses=ACCEPTED)
async def redrive_dead_letters(
    desk: Desk, caller: Writer, body: ChosenDeadLetters, response: Response
) -> DeadLetterAct:
    """Have dead letters handled again, in order; with `dry_run`, only count them.

    Of a key that is held back, those that came before are redriven, too. What fails again stays.
    """
    return await _act(desk, "redrive", caller, body, response)


@router.post("/discard", responses=ACCEPTED)
async def discard_dead_letters(
    desk: Desk, caller: Writer, body: ChosenDeadLetters, response: Response
) -> DeadLetterAct:
    """Do away with dead letters for good; with `dry_run`, only count them. What they held back goes on."""
    return await _act(desk, "discard", caller, body, response)


async def _act(
    desk: DeadLetterDesk, act: Act, caller: Principal, body: ChosenDeadLetters, response: Response
) -> DeadLetterAct:
    wanted = body.to_filter(caller)
    preview = await desk.preview(act, wanted)
    outcome = Outcome(discarded=0, jobs=[])
    if not body.dry_run:
        # What dies from now on was not counted.
        until = min(wanted.until or preview.as_of, preview.as_of)
        seen = msgspec.structs.replace(wanted, until=until)
        outcome = await (desk.redrive if act == "redrive" else desk.discard)(seen, caller.actor)
    if outcome.jobs:
        response.status_code = 202
    return DeadLetterAct.model_validate(msgspec.to_builtins(preview) | msgspec.to_builtins(outcome))


def _bound(wanted: DeadLetterFilter, caller: Principal) -> DeadLetterFilter:
    if wanted.tenant is not None:
        caller.require_sight(wanted.tenant)
    return msgspec.structs.replace(wanted, owner=caller.tenant)
