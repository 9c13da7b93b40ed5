"""Delivers one event to one endpoint: a signed POST, once. Whether and when to try again is for who asked."""

from __future__ import annotations

import asyncio
import hashlib
import os
import re
import ssl
import time
import uuid
from contextlib import suppress
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from importlib.metadata import version
from types import TracebackType
from typing import Final

import aiohttp
import msgspec
from yarl import URL

from tenantry import event as cloudevents
from tenantry.config import Settings
from tenantry.errors import PushFailed, PushGone
from tenantry.subscriptions.push_address import AddressGuard, AddressRefused
from tenantry.subscriptions.push_endpoint import PushEndpoint
from tenantry.subscriptions.push_resolver import TENANT, PushResolver
from tenantry.subscriptions.push_secrets import PushSecrets
from tenantry.telemetry import signal
from tenantry.tenants.boundary import TENANT_EXTENSION
from tenantry.tenants.keyring import Keyring

ATTEMPTED = signal(
    "push.attempted",
    "An event was sent to an endpoint of a tenant.",
    "tenant",
    "endpoint",
    "event_id",
    "status",
    "seconds",
    "error",
    level="debug",
)

USER_AGENT: Final = f"Tenantry/{version('tenantry')}"
PING: Final = "tenantry.ping"
LARGEST_ANSWER: Final = 4096
LONGEST_SHOWN: Final = 200
LONGEST_WAIT: Final = 3600.0
IDLE_SECONDS: Final = 30.0
DRAIN_SECONDS: Final = 1.0

_SAFE_ID = re.compile(r"[A-Za-z0-9_-]{1,128}")
_BUSY: Final = (HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE)


class Delivered(msgspec.Struct, frozen=True):
    status: int
    seconds: float


class Deliverer:
    """One for all endpoints. Connections are kept and used again; cookies are not, and proxies never used."""

    def __init__(self, secrets: PushSecrets, guard: AddressGuard, *, tls: ssl.SSLContext | None = None) -> None:
        self._secrets = secrets
        self._guard = guard
        self._tls = tls
        self._sessions: dict[str, aiohttp.ClientSession] = {}

    @classmethod
    def from_settings(cls, settings: Settings, keyring: Keyring) -> Deliverer:
        return cls(PushSecrets(keyring), AddressGuard(settings.push_allowed_networks))

    async def start(self) -> None:
        # An address may be good enough for TLS only, and a connector does not know what it connects for.
        self._sessions = {scheme: self._open(is_encrypted=scheme == "https") for scheme in ("http", "https")}

    async def stop(self) -> None:
        for session in self._sessions.values():
            await session.close()

    async def __aenter__(self) -> Deliverer:
        await self.start()
        return self

    async def __aexit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        await self.stop()

    async def deliver(self, endpoint: PushEndpoint, event_id: str, document: bytes) -> Delivered:
        """Send it, once. Raises PushFailed, which may be tried again, or PushGone; EventInvalid if it cannot be signed.

        `document` is the event as structured JSON.
        """
        with ATTEMPTED.span(tenant=endpoint.tenant_id, endpoint=endpoint.name, event_id=event_id) as span:
            try:
                began = time.perf_counter()
                status = await self._send(endpoint, self._headers(endpoint, event_id, document), document)
            except (PushFailed, PushGone) as problem:
                span["status"] = problem.status
                raise
            span["status"] = status
            return Delivered(status, time.perf_counter() - began)

    async def ping(self, endpoint: PushEndpoint) -> Delivered:
        """Send an event that only says that deliveries arrive."""
        event = cloudevents.Event(
            id=f"ping-{uuid.uuid4()}",
            source="tenantry",
            type=PING,
            time=cloudevents.now(),
            data=msgspec.Raw(msgspec.json.encode({"endpoint": endpoint.name})),
            extensions={TENANT_EXTENSION: endpoint.tenant_id},
        )
        return await self.deliver(endpoint, event.id, cloudevents.encode(event))

    def _open(self, *, is_encrypted: bool) -> aiohttp.ClientSession:
        connector = aiohttp.TCPConnector(
            resolver=PushResolver(),
            # Each tenant waits for its own lookups: a shared answer would be waited for together.
            use_dns_cache=False,
            socket_factory=self._guard.socket_maker(is_encrypted=is_encrypted),
            ssl=self._tls or True,
            # Each endpoint has a bound of its own. One for a host, or for all, would let tenants wait for each other.
            limit=0,
            keepalive_timeout=IDLE_SECONDS,
        )
        return aiohttp.ClientSession(
            connector=connector,
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=aiohttp.ClientTimeout(),
            # What is shown of an answer is bounded, and what a few bytes unpack to is not.
            auto_decompress=False,
            trust_env=False,
        )

    def _headers(self, endpoint: PushEndpoint, event_id: str, document: bytes) -> dict[str, str]:
        id, now = message_id(endpoint, event_id), datetime.now(UTC)
        return {
            "content-type": cloudevents.CONTENT_TYPE,
            "user-agent": USER_AGENT,
            "webhook-id": id,
            "webhook-timestamp": str(int(now.timestamp())),
            "webhook-signature": self._secrets.sign(endpoint, id, now, document),
        }

    async def _send(self, endpoint: PushEndpoint, headers: dict[str, str], document: bytes) -> int:
        url = URL(endpoint.url)
        TENANT.set(endpoint.tenant_id)
        whom = f"endpoint {endpoint.name} of tenant {endpoint.tenant_id}: {url.host}"
        try:
            async with (
                asyncio.timeout(endpoint.timeout_seconds),
                self._sessions[url.scheme].post(url, data=document, headers=headers, allow_redirects=False) as response,
            ):
                if response.status // 100 == 2:
                    # What is read to its end leaves a connection that can be used again.
                    with suppress(TimeoutError, aiohttp.ClientError):
                        async with asyncio.timeout(DRAIN_SECONDS):
                            await _read(response)
                    return response.status
                raise _explain(whom, response, await _read(response))
        except TimeoutError:
            raise PushFailed(f"{whom} did not answer within {endpoint.timeout_seconds} seconds") from None
        except (aiohttp.ClientError, OSError, ValueError) as problem:
            raise PushFailed(f"{whom} {_reason(problem)}") from None


def message_id(endpoint: PushEndpoint, event_id: str) -> str:
    """The `webhook-id`: the same at each attempt, another for each event of each channel of each tenant.

    A dot ends it in what is signed, and a header cannot hold everything that an event's id can.
    """
    safe = event_id
    if not _SAFE_ID.fullmatch(event_id):
        safe = f"sha256_{hashlib.sha256(event_id.encode('utf-8', 'surrogatepass')).hexdigest()}"
    return f"{endpoint.tenant_id}_{endpoint.channel}_{safe}"


async def _read(response: aiohttp.ClientResponse) -> bytes:
    """The beginning of what was answered; a connection with more of it is closed."""
    read = b""
    while len(read) < LARGEST_ANSWER and (part := await response.content.read(LARGEST_ANSWER - len(read))):
        read += part
    return read


def _explain(whom: str, response: aiohttp.ClientResponse, body: bytes) -> PushFailed | PushGone:
    status = response.status
    said = _shown(body)
    problem = f"{whom} answered {status}{': ' + said if said else ''}"
    if status == HTTPStatus.GONE:
        return PushGone(problem, status)
    if status // 100 == 3:
        problem = f"{whom} answered {status}, and redirects are not followed: set the URL that it leads to"
    wait = read_wait(response.headers.get("retry-after", "")) if status in _BUSY else None
    return PushFailed(problem, status, wait)


def _shown(body: bytes) -> str:
    text = " ".join(body.decode("utf-8", "replace").split())
    text = "".join(each if each.isprintable() else "\N{REPLACEMENT CHARACTER}" for each in text)
    return text if len(text) <= LONGEST_SHOWN else text[:LONGEST_SHOWN] + "…"


def read_wait(text: str) -> float | None:
    """Seconds, from `Retry-After`: a number of them, or a date."""
    if re.fullmatch(r"[0-9]{1,9}", text.strip()):
        return min(float(text), LONGEST_WAIT)
    try:
        until = parsedate_to_datetime(text)
        seconds = (until.replace(tzinfo=until.tzinfo or UTC) - datetime.now(UTC)).total_seconds()
    except (ValueError, OverflowError):
        return None
    return min(max(seconds, 0.0), LONGEST_WAIT)


def _reason(problem: Exception) -> str:
    if isinstance(problem, aiohttp.ClientConnectorError) and isinstance(problem.os_error, AddressRefused):
        return (
            "does not lead to a public address with https://; set another URL, or let an operator allow its network "
            "with push_allowed_networks"
        )
    if isinstance(problem, aiohttp.ClientConnectorDNSError):
        return "is not known to the name servers; check the URL"
    if isinstance(problem, aiohttp.ClientConnectorCertificateError):
        return f"has a certificate that is not valid: {problem.certificate_error}"
    if isinstance(problem, aiohttp.ClientConnectorError):
        cause = problem.os_error
        return f"cannot be connected to: {os.strerror(cause.errno).lower() if cause.errno else cause}"
    return f"broke off: {_shown(str(problem).encode('utf-8', 'replace')) or type(problem).__name__}"
