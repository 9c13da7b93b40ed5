"""Around all routes: bodies have a limit, nothing is cached, every request is told, and a fault is a plain 500."""

from __future__ import annotations

import time
from typing import Final

from fastapi import Request
from starlette.datastructures import MutableHeaders
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tenantry.api.problems import fault_response, problem_response, route_path
from tenantry.telemetry import signal

REQUEST = signal(
    "api.request",
    "The API answered a request.",
    "method",
    "path",
    "status",
    "seconds",
    "caller",
    level="debug",
)

LARGEST_BODY: Final = 1 << 20
# A client that is cut off while it sends may never see the answer, so somewhat too large a body is read to its end.
LARGEST_DISCARDED: Final = 16 << 20


class Edge:
    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        began, status, request = time.perf_counter(), 0, Request(scope)

        async def answer(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(scope=message)
                headers["Cache-Control"] = "no-store"
                headers["X-Content-Type-Options"] = "nosniff"
            await send(message)

        try:
            body = await _read(receive)
            if body is None:
                too_large = problem_response(request, 413, f"expected a body of at most {LARGEST_BODY:,} bytes")
                return await too_large(scope, receive, answer)
            await self._app(scope, _replay(body, receive), answer)
        except ClientDisconnect:
            return
        except Exception as problem:
            if status:
                raise
            await fault_response(request, problem)(scope, receive, answer)
        finally:
            REQUEST.emit(
                method=request.method,
                path=route_path(request),
                status=status,
                seconds=time.perf_counter() - began,
                caller=_caller(scope),
            )


async def _read(receive: Receive) -> bytes | None:
    """The whole body; None if it is too large. Part of a body is none: its sender may have meant something else."""
    parts, size = [], 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        part = message.get("body", b"")
        size += len(part)
        if size <= LARGEST_BODY:
            parts.append(part)
        if not message.get("more_body") or size > LARGEST_DISCARDED:
            return b"".join(parts) if size <= LARGEST_BODY else None


def _replay(body: bytes, receive: Receive) -> Receive:
    pending: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def replay() -> Message:
        return pending.pop() if pending else await receive()

    return replay


def _caller(scope: Scope) -> str:
    """Which sort of caller it was, not who."""
    principal = scope.get("state", {}).get("principal")
    return principal.actor.partition(":")[0] if principal else "nobody"
