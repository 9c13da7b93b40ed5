"""The door for events, in front of the framework: what that does for each request costs more than to store an event.

CloudEvents 1.0 over HTTP, in structured, batch and binary mode:
https://github.com/cloudevents/spec/blob/v1.0.2/cloudevents/bindings/http-protocol-binding.md
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Awaitable, Callable
from enum import Enum, auto
from functools import lru_cache
from typing import Any, Final, NamedTuple
from urllib.parse import parse_qsl

import msgspec
from fastapi import Request
from starlette.requests import ClientDisconnect
from starlette.types import Receive, Scope, Send

from tenantry.api.callers import Callers
from tenantry.api.edge import REQUEST
from tenantry.api.problems import TYPE_PREFIX, fault_response, known_response, problem_response
from tenantry.errors import EventInvalid, EventTooLarge
from tenantry.ingest.admission import Stay
from tenantry.ingest.binary_mode import document_of, is_binary
from tenantry.ingest.intake import LARGEST_BATCH, Intake, Receipt
from tenantry.ingest.tracing import Trace, trace_of_request
from tenantry.tenants.principal import Principal

OWN_PATH: Final = "/v1/events"
TENANT_PATH: Final = "/v1/tenants/{id}/events"
SCOPE: Final = "events:write"
STRUCTURED: Final = "application/cloudevents+json"
BATCH: Final = "application/cloudevents-batch+json"
DEFAULT_CHANNEL: Final = "events"
READ_SECONDS: Final = 30.0

_PATH = re.compile(r"/v1/(?:tenants/([^/]+)/)?events")
_ANSWER_HEADERS: Final = (
    (b"content-type", b"application/json"),
    (b"cache-control", b"no-store"),
    (b"x-content-type-options", b"nosniff"),
)
_encode = msgspec.json.Encoder().encode


class Mode(Enum):
    STRUCTURED = auto()
    BATCH = auto()
    BINARY = auto()


class Refused(Exception):
    """A request that holds no event that could be looked at."""

    def __init__(self, status: int, detail: str, name: str = "", **headers: str) -> None:
        super().__init__(detail)
        self.status = status
        self.name = name
        self.headers = {header.replace("_", "-"): value for header, value in headers.items()}


class Asked(NamedTuple):
    """What is wanted of a request's headers."""

    authorization: bytes
    content_type: str
    trace: Trace | None
    length: int | None


class _Route(NamedTuple):
    """As telemetry and the OpenAPI document name it."""

    path: str


class IngestDoor:
    def __init__(self, intake: Callable[[], Intake], callers: Callers, *, read_seconds: float = READ_SECONDS) -> None:
        self._intake = intake
        self._callers = callers
        self._read_seconds = read_seconds

    @staticmethod
    def is_for(path: str) -> bool:
        return path.endswith("/events") and _PATH.fullmatch(path) is not None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        began, status, caller = time.perf_counter(), 0, "nobody"
        tenant = None if scope["path"] == OWN_PATH else scope["path"].split("/")[3]
        try:
            try:
                if scope["method"] != "POST":
                    raise Refused(405, f"{scope['method']} is not possible here", Allow="POST")
                asked = _read_headers(scope)
                principal = self._callers.recall(asked.authorization)
                if principal is None:
                    principal = await self._callers.identify(asked.authorization)
                caller = principal.actor.partition(":")[0]
                receipt = await self._take(scope, receive, asked, principal, tenant)
                status = 202
                await _answer(send, receipt)
            except ClientDisconnect:
                return
            except Exception as problem:
                if status:
                    raise
                scope["route"] = _Route(OWN_PATH if tenant is None else TENANT_PATH)
                status = await _answer_problem(scope, receive, send, problem)
        finally:
            REQUEST.emit(
                method=scope["method"],
                path=OWN_PATH if tenant is None else TENANT_PATH,
                status=status,
                seconds=time.perf_counter() - began,
                caller=caller,
            )

    async def _take(
        self, scope: Scope, receive: Receive, asked: Asked, principal: Principal, named: str | None
    ) -> Receipt:
        if named is not None:
            # First of all, so that no answer depends on whether a tenant of others exists.
            principal.require_sight(named)
        principal.require(SCOPE)
        tenant_id = named or principal.tenant
        if tenant_id is None:
            raise Refused(
                400,
                "this key is not for a single tenant: send to /v1/tenants/{id}/events instead",
                "no-tenant",
            )
        channel = _read_query(scope["query_string"]) if scope["query_string"] else DEFAULT_CHANNEL
        mode = _mode(asked.content_type) or _require_binary(scope, asked.content_type)
        intake = self._intake()
        tenant, lane = await intake.find(tenant_id, channel)
        with intake.room.enter(tenant_id) as stay:
            largest = LARGEST_BATCH if mode is Mode.BATCH else tenant.limits.payload
            body = await self._read_body(receive, asked.length, largest, stay)
            if mode is Mode.BATCH:
                return await intake.take_batch(tenant, lane, _require_text(body), asked.trace, stay)
            if mode is Mode.STRUCTURED:
                return await intake.take(tenant, lane, _require_text(body), asked.trace, stay)
            document = document_of(scope["headers"], asked.content_type, body)
            return await intake.take(tenant, lane, document, asked.trace, stay)

    async def _read_body(self, receive: Receive, length: int | None, largest: int, stay: Stay) -> bytes:
        if length is not None and length > largest:
            raise _too_large(largest)
        try:
            async with asyncio.timeout(self._read_seconds):
                return await _read_all(receive, largest, stay)
        except TimeoutError:
            raise Refused(408, f"expected the whole body within {self._read_seconds:g} s", Connection="close") from None


async def _read_all(receive: Receive, largest: int, stay: Stay) -> bytes:
    parts: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        part = message.get("body", b"")
        size += len(part)
        if size > largest:
            raise _too_large(largest)
        stay.take_bytes(len(part))
        if not message.get("more_body"):
            # Most bodies come in one piece.
            return b"".join([*parts, part]) if parts else part
        parts.append(part)


def _too_large(largest: int) -> EventTooLarge:
    return EventTooLarge(f"expected a body of at most {largest:,} bytes")


def _require_text(body: bytes) -> bytes:
    try:
        body.decode()
    except UnicodeDecodeError as problem:
        raise EventInvalid("", f"expected JSON in UTF-8, got at byte {problem.start}: {problem.reason}") from None
    return body


def _read_headers(scope: Scope) -> Asked:
    authorization, content_type, parent, state, length = b"", b"", b"", b"", None
    for name, value in scope["headers"]:
        if name == b"authorization":
            authorization = authorization or value
        elif name == b"content-type":
            content_type = value
        elif name == b"content-length":
            length = int(value) if value.isdigit() else None
        elif name == b"traceparent":
            parent = value
        elif name == b"tracestate":
            state = value
        elif name == b"content-encoding" and value.strip().lower() not in (b"", b"identity"):
            raise Refused(415, "expected a body without Content-Encoding; send it as it is", "unsupported-encoding")
    trace = trace_of_request(parent.decode("latin-1"), state.decode("latin-1")) if parent else None
    return Asked(authorization, content_type.decode("latin-1"), trace, length)


@lru_cache(maxsize=256)
def _mode(content_type: str) -> Mode | None:
    """None if that is for other headers to say."""
    media_type, _, parameters = content_type.partition(";")
    media_type = media_type.strip().lower()
    if media_type not in (STRUCTURED, BATCH):
        if media_type.startswith("application/cloudevents"):
            raise Refused(415, f"expected {STRUCTURED} or {BATCH}, got: {media_type[:80]!r}", "unsupported-type")
        return None
    charset = re.search(r'charset\s*=\s*"?([^\s";]*)', parameters, re.IGNORECASE)
    if charset and charset[1].lower() not in ("utf-8", "utf8", "us-ascii"):
        raise Refused(415, f"expected JSON in UTF-8, got: {charset[1][:40]!r}", "unsupported-charset")
    return Mode.STRUCTURED if media_type == STRUCTURED else Mode.BATCH


def _require_binary(scope: Scope, content_type: str) -> Mode:
    if is_binary(scope["headers"]):
        return Mode.BINARY
    raise Refused(
        415,
        f"expected a CloudEvent: Content-Type {STRUCTURED} for one event, {BATCH} for many, or headers ce-id, "
        f"ce-source, ce-type and ce-specversion with the data as body; got Content-Type {content_type[:80]!r} "
        "without such headers",
        "unsupported-type",
    )


def _read_query(query: bytes) -> str:
    pairs = parse_qsl(query.decode("latin-1"), keep_blank_values=True, max_num_fields=20)
    if [name for name, _ in pairs] != ["channel"]:
        raise Refused(422, "expected no parameter but channel, and that once", "invalid")
    return pairs[0][1]


async def _answer(send: Send, receipt: Receipt) -> None:
    body = _encode(receipt)
    headers = [*_ANSWER_HEADERS, (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": 202, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def _answer_problem(scope: Scope, receive: Receive, send: Send, problem: Exception) -> int:
    request = Request(scope)
    if isinstance(problem, Refused):
        kind: dict[str, Any] = {"type": TYPE_PREFIX + problem.name} if problem.name else {}
        response = problem_response(request, problem.status, str(problem), headers=problem.headers, **kind)
    else:
        response = known_response(request, problem) or fault_response(request, problem)
    response.headers["Cache-Control"] = "no-store"
    response.headers["X-Content-Type-Options"] = "nosniff"
    await response(scope, receive, send)
    return response.status_code


class Front:
    """The whole API: events go through their own door, everything else to the framework."""

    def __init__(self, app: Callable[[Scope, Receive, Send], Awaitable[None]], events: IngestDoor) -> None:
        self._app = app
        self._events = events

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and self._events.is_for(scope["path"]):
            return await self._events(scope, receive, send)
        await self._app(scope, receive, send)
