"""Every error as a problem document (RFC 9457), and none that says more than its reader may know."""

from __future__ import annotations

import json
from http import HTTPStatus
from typing import Any, Final

import psycopg
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from pydantic import BaseModel, ConfigDict, Field
from starlette.exceptions import HTTPException

from tenantry import errors
from tenantry.telemetry import signal

REFUSED = signal(
    "api.refused",
    "Somebody was not let in, or not let do what they asked.",
    "method",
    "path",
    "status",
    "reason",
    level="warning",
)
FAILED = signal(
    "api.failed", "The API could not do what it was asked.", "method", "path", "status", "error", level="warning"
)

MEDIA_TYPE: Final = "application/problem+json"
TYPE_PREFIX: Final = "urn:tenantry:problem:"
RETRY_SECONDS: Final = 5
CHALLENGE: Final = 'Bearer realm="tenantry"'


class FieldProblem(BaseModel):
    """One value of a request that is wrong."""

    field: str = Field(description="where it is, like `body.channels`")
    detail: str = Field(description="what is wrong with it")


class Problem(BaseModel):
    """What went wrong (RFC 9457)."""

    model_config = ConfigDict(extra="allow")

    type: str = Field(description="what sort of problem it is; `about:blank` if the status says it all")
    title: str = Field(description="the sort of problem in words")
    status: int = Field(description="the HTTP status")
    detail: str = Field(description="what happened, and what to do next")
    instance: str = Field(description="the path that was asked for")
    field: str | None = Field(None, description="the value that is wrong, if it is a single one")
    index: int | None = Field(None, description="the event of a batch that is wrong, from 0")
    errors: list[FieldProblem] | None = Field(None, description="all values that are wrong")


_STATUSES: Final[dict[type[Exception], tuple[int, str, str]]] = {
    errors.TenantInvalid: (422, "invalid", "What was asked for is not valid"),
    errors.TenantNotFound: (404, "not-found", "There is no such thing"),
    errors.TenantConflict: (409, "conflict", "It cannot be done in the present state"),
    errors.BudgetExceeded: (409, "budget-exceeded", "The cluster has no room for it"),
    errors.ProvisioningFailed: (503, "provisioning-failed", "The servers do not have it yet"),
    errors.AuditBroken: (409, "audit-broken", "The audit log is not what was written"),
    errors.NotAuthenticated: (401, "not-authenticated", "No valid API key or token"),
    errors.NotAllowed: (403, "not-allowed", "A scope is missing"),
    errors.EventInvalid: (422, "invalid-event", "The event is not valid"),
    errors.DataInvalid: (422, "invalid-data", "The event does not fit the schema for its type"),
    errors.EventTooLarge: (413, "event-too-large", "The event is too large"),
    errors.TooMuch: (429, "too-much", "More than may be sent now"),
    errors.StorageFull: (429, "storage-full", "The channel is full"),
    errors.NowhereToStore: (503, "unavailable", "It cannot be done at the moment"),
    errors.KeysUnreachable: (503, "unavailable", "It cannot be done at the moment"),
    errors.BrokerError: (503, "unavailable", "It cannot be done at the moment"),
    errors.DatabaseError: (503, "unavailable", "It cannot be done at the moment"),
    psycopg.DataError: (422, "invalid", "What was asked for is not valid"),
    UnicodeEncodeError: (422, "invalid", "What was asked for is not valid"),
    OverflowError: (422, "invalid", "What was asked for is not valid"),
    psycopg.Error: (503, "unavailable", "It cannot be done at the moment"),
}
# Their own words name servers, which is for logs, not for callers.
_DETAILS: Final[dict[type[Exception], str]] = {
    errors.BrokerError: f"NATS cannot be used at the moment; try again in {RETRY_SECONDS} seconds",
    errors.DatabaseError: f"the database cannot be used at the moment; try again in {RETRY_SECONDS} seconds",
    psycopg.DataError: "expected text and numbers that can be stored, got a NUL, a surrogate or too large a number",
    psycopg.Error: f"the database cannot be used at the moment; try again in {RETRY_SECONDS} seconds",
    UnicodeEncodeError: "expected text that can be stored, got a surrogate",
    OverflowError: "expected numbers that can be stored, got too large a one",
}
_MEANINGS: Final = {
    400: "The request makes no sense.",
    401: "No valid API key or token.",
    403: "A scope is missing.",
    404: "There is no such thing, or it is not yours to see.",
    409: "It cannot be done in the present state.",
    405: "Only POST is possible here.",
    408: "The body did not come in time.",
    413: "The body is larger than 1 MiB.",
    415: "The body is of a type that is not known here.",
    422: "Something in the request is not valid.",
    429: "More than the tenant may send now; try again later.",
    500: "A fault in Tenantry.",
    503: "NATS, PostgreSQL or the JWKS cannot be reached; try again.",
}


def describe_problems(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """The problems that a route can answer with, for its description."""
    schema = {"$ref": "#/components/schemas/Problem"}
    described: dict[int | str, dict[str, Any]] = {
        status: {"description": _MEANINGS[status], "content": {MEDIA_TYPE: {"schema": schema}}}
        for status in sorted({*statuses, 413, 500, 503})
    }
    if 401 in described:
        described[401]["headers"] = {"WWW-Authenticate": {"schema": {"type": "string"}}}
    for status in described.keys() & {429, 503}:
        described[status]["headers"] = {"Retry-After": {"schema": {"type": "integer"}}}
    return described


def problem_response(
    request: Request,
    status: int,
    detail: str,
    *,
    type: str = "about:blank",
    title: str = "",
    headers: dict[str, str] | None = None,
    **more: Any,
) -> Response:
    document = {
        "type": type,
        "title": title or HTTPStatus(status).phrase,
        "status": status,
        "detail": detail,
        # As it was sent: what it decodes to may not even be text.
        "instance": request.scope.get("raw_path", b"").decode("ascii", "replace"),
    }
    headers = dict(headers or {})
    if status == HTTPStatus.UNAUTHORIZED:
        headers["WWW-Authenticate"] = CHALLENGE
    if status == HTTPStatus.SERVICE_UNAVAILABLE:
        headers.setdefault("Retry-After", str(RETRY_SECONDS))
    # ASCII, so that a detail which quotes half a character can still be sent.
    return Response(json.dumps(document | more).encode("ascii"), status, headers, MEDIA_TYPE)


def install_problems(app: FastAPI) -> None:
    for kind in _STATUSES:
        app.add_exception_handler(kind, _known)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HTTPException, _plain)


async def _known(request: Request, problem: Exception) -> Response:
    response = known_response(request, problem)
    assert response is not None
    return response


def known_response(request: Request, problem: Exception) -> Response | None:
    """The answer to a problem that was foreseen; None for any other."""
    kind = next((kind for kind in type(problem).__mro__ if kind in _STATUSES), None)
    if kind is None:
        return None
    status, name, title = _STATUSES[kind]
    more, headers = _particulars(problem)
    if status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
        REFUSED.emit(method=request.method, path=route_path(request), status=status, reason=str(problem))
    elif status == HTTPStatus.SERVICE_UNAVAILABLE:
        FAILED.emit(method=request.method, path=route_path(request), status=status, error=problem)
    detail = _DETAILS.get(kind) or str(problem)
    return problem_response(request, status, detail, type=TYPE_PREFIX + name, title=title, headers=headers, **more)


def _particulars(problem: Exception) -> tuple[dict[str, Any], dict[str, str]]:
    """What a problem says beyond its words: for the document, and as headers."""
    more: dict[str, Any] = {}
    if isinstance(problem, errors.TenantInvalid | errors.EventInvalid) and problem.field:
        more["field"] = problem.field
    if isinstance(problem, errors.EventInvalid | errors.EventTooLarge) and problem.index is not None:
        more["index"] = problem.index
    if isinstance(problem, errors.NotTaken) and not isinstance(problem, errors.EventTooLarge):
        return more, {"Retry-After": str(problem.retry_seconds)}
    return more, {}


async def _invalid(request: Request, problem: Exception) -> Response:
    assert isinstance(problem, RequestValidationError)
    found = [{"field": ".".join(str(part) for part in each["loc"]), "detail": each["msg"]} for each in problem.errors()]
    return problem_response(
        request,
        422,
        "; ".join(f"{each['field']}: {each['detail']}" for each in found[:3]),
        type=f"{TYPE_PREFIX}invalid",
        title="What was asked for is not valid",
        errors=found,
    )


async def _plain(request: Request, problem: Exception) -> Response:
    assert isinstance(problem, HTTPException)
    details = {
        404: "there is nothing at this path; /openapi.json lists what there is",
        405: f"{request.method} is not possible here",
    }
    is_bare = problem.detail == HTTPStatus(problem.status_code).phrase
    detail = details.get(problem.status_code, problem.detail) if is_bare else problem.detail
    return problem_response(request, problem.status_code, detail, headers=dict(problem.headers or {}))


def fault_response(request: Request, problem: Exception) -> Response:
    """For what nobody foresaw. The reason is told by telemetry alone."""
    FAILED.emit(method=request.method, path=route_path(request), status=500, error=problem)
    return problem_response(
        request, 500, "a fault in Tenantry; its operators find the reason in the logs", type=f"{TYPE_PREFIX}fault"
    )


def route_path(request: Request) -> str:
    """The path with the names of its variables, as in the OpenAPI document; never what somebody made up."""
    return str(getattr(request.scope.get("route"), "path", ""))
