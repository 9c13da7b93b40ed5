"""Connections to NATS, by whatever the server asks for: nothing, a token, a creds file, TLS.

`connect` gives the official client, for control and subscriptions; `connect_bulk` the one for the two hot paths.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Final

import nats.errors
from nats.aio.client import Client, RawCredentials

import nats_bulk
from nats_bulk import Credentials
from tenantry.config import Settings
from tenantry.errors import BrokerRefused, BrokerUnreachable
from tenantry.nats.claims import format_credentials
from tenantry.telemetry import signal

DISCONNECTED = signal(
    "nats.disconnected", "A connection to NATS broke; the client tries again.", "connection", level="warning"
)
RECONNECTED = signal("nats.reconnected", "A connection to NATS is back.", "connection")
CONNECTION_ERROR = signal(
    "nats.error", "NATS reported an error on a connection.", "connection", "error", level="warning"
)

CONNECT_SECONDS: Final = 5
_REFUSALS: Final = ("authorization", "authentication", "certificate", "maximum account active connections")
# A server that refuses closes the connection at once, and the client may see only that.
_CUT_OFF: Final = (ConnectionResetError, BrokenPipeError, nats.errors.UnexpectedEOF)


@dataclass(frozen=True, slots=True)
class Broker:
    """Where NATS is and who we are to it."""

    url: str = field(repr=False)
    credentials: Credentials = field(default_factory=Credentials)
    tls: ssl.SSLContext | None = field(default=None, repr=False)

    @classmethod
    def from_settings(cls, settings: Settings) -> Broker:
        """For a server that is not embedded."""
        if settings.nats_url is None:
            raise ValueError("expected nats_url to be set")
        if settings.nats_creds:
            try:
                credentials = Credentials.from_file(settings.nats_creds)
            except nats_bulk.AuthenticationFailed as problem:
                raise BrokerRefused(f"{problem}; check NATS_CREDS") from None
        else:
            credentials = Credentials(token=settings.nats_token.get_secret_value() if settings.nats_token else "")
        return cls(settings.nats_url.get_secret_value(), credentials, _tls_context(settings))


def _tls_context(settings: Settings) -> ssl.SSLContext | None:
    if not (settings.nats_tls_ca or settings.nats_tls_cert):
        return None
    try:
        context = ssl.create_default_context(cafile=settings.nats_tls_ca)
        if settings.nats_tls_cert:
            context.load_cert_chain(settings.nats_tls_cert, settings.nats_tls_key)
    except (OSError, ssl.SSLError) as problem:
        raise BrokerRefused(
            f"cannot use the TLS files for NATS: {problem}; check nats_tls_ca, nats_tls_cert and nats_tls_key"
        ) from None
    return context


@asynccontextmanager
async def connect(broker: Broker, name: str) -> AsyncIterator[Client]:
    """The official client; drained at the end. It reconnects by itself, for as long as it takes."""
    client = await open_client(broker, name)
    try:
        yield client
    finally:
        if client.is_connected:
            await client.drain()
        else:
            # A connection that broke a moment ago cannot be closed properly, and need not be.
            with suppress(OSError):
                await client.close()


async def open_client(broker: Broker, name: str) -> Client:
    """Connect now or say why not: a first connection is tried once per server, a lost one again and again."""
    client = Client()
    servers = [part.strip() for part in broker.url.split(",")]
    problems: list[Exception] = []
    all_failed = asyncio.Event()

    async def disconnected() -> None:
        if not (client.is_closed or client.is_draining):
            DISCONNECTED.emit(connection=name)

    async def reconnected() -> None:
        RECONNECTED.emit(connection=name)

    async def failed(error: Exception) -> None:
        problems.append(error)
        if len(problems) == len(servers):
            all_failed.set()
        if client.is_connected:
            CONNECTION_ERROR.emit(connection=name, error=error)

    connecting = asyncio.ensure_future(
        client.connect(
            servers=servers,
            name=name,
            max_reconnect_attempts=-1,
            connect_timeout=CONNECT_SECONDS,
            drain_timeout=CONNECT_SECONDS,
            disconnected_cb=disconnected,
            reconnected_cb=reconnected,
            error_cb=failed,
            tls=broker.tls,
            **_authentication(broker.credentials),
        )
    )
    failing = asyncio.ensure_future(all_failed.wait())
    try:
        await asyncio.wait([connecting, failing], timeout=2 * CONNECT_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        if connecting.done() and not connecting.exception():
            problems.clear()
            return client
    finally:
        failing.cancel()
        connecting.cancel()
        outcome = (await asyncio.gather(connecting, return_exceptions=True))[0]
    await client.close()
    if isinstance(outcome, Exception):
        problems.append(outcome)
    raise _explained(problems[-1] if problems else TimeoutError("no answer"), broker)


def _authentication(credentials: Credentials) -> dict[str, Any]:
    if credentials.token:
        return {"token": credentials.token}
    if credentials.jwt:
        return {"user_credentials": RawCredentials(format_credentials(credentials))}
    return {"nkeys_seed_str": credentials.seed} if credentials.seed else {}


def connect_bulk(broker: Broker, name: str, **options: Any) -> nats_bulk.Connection:
    """A blocking connection for bulk publish and range read."""
    try:
        return nats_bulk.Connection(broker.url, credentials=broker.credentials, tls=broker.tls, name=name, **options)
    except nats_bulk.AuthenticationFailed as problem:
        raise BrokerRefused(f"{problem}; check the credentials for NATS") from problem
    except nats_bulk.ConnectionLost as problem:
        raise BrokerUnreachable(f"{problem}; is NATS running there?") from problem


def _explained(problem: Exception, broker: Broker) -> BrokerUnreachable | BrokerRefused:
    reason = str(problem) or type(problem).__name__
    if isinstance(problem, _CUT_OFF):
        reason = "it cut the handshake short"
    if isinstance(problem, _CUT_OFF) or any(word in reason.lower() for word in _REFUSALS):
        return BrokerRefused(f"NATS at {_places(broker.url)} refused the connection: {reason}; check the credentials")
    return BrokerUnreachable(
        f"cannot reach NATS at {_places(broker.url)}: {reason}; is it running there? "
        "(Without NATS_URL and NATS_CREDS the embedded one is used.)"
    )


def _places(url: str) -> str:
    """The addresses without what stands before an @."""
    return ", ".join(part.strip().rpartition("@")[2].rpartition("://")[2] for part in url.split(","))
