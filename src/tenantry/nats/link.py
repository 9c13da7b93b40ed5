"""A connection to NATS in the event loop: whole groups of messages out in one write, runs of acknowledgements in.

`nats_bulk.Connection` blocks, for its callers are threads that do nothing else. Here requests come one by one, and a
thread in between would cost each of them more than all the rest.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import ssl
from collections.abc import Callable
from typing import Any, Final

from nats_bulk import AuthenticationFailed, ConnectionLost, ProtocolError
from nats_bulk.address import Address
from nats_bulk.wire import (
    PING,
    PONG,
    Acknowledgements,
    ConsumedMessages,
    Delivery,
    Info,
    Operation,
    Parser,
    Ping,
    Pong,
    Refusal,
)
from tenantry.nats.connections import Broker

CONNECT_SECONDS: Final = 3.0


class Listener:
    """Who wants to know what comes in; what it leaves out is of no interest to it."""

    def acknowledged(self, run: Acknowledgements) -> None:
        pass

    def consumed(self, run: ConsumedMessages) -> None:
        pass

    def answered(self, answer: Delivery) -> None:
        pass

    def refused(self, refusal: Refusal) -> None:
        pass

    def ponged(self) -> None:
        """All that was written before the ping has been read."""

    def lost(self, reason: str) -> None:
        raise NotImplementedError


class Link(asyncio.Protocol):
    """Once open it stays so until `lost` is called, once."""

    def __init__(self, server: Address) -> None:
        self.inbox = f"_INBOX.{secrets.token_hex(11)}."
        self.max_payload = 0
        self.peers: list[str] = []
        """Other servers of the cluster, as host:port."""
        self.heard_at = 0.0
        self._loop = asyncio.get_running_loop()
        self._server = server
        self._parser = Parser(self.inbox, reads_streams=False)
        self._transport: asyncio.Transport | None = None
        self._listener: Listener | None = None
        self._info: asyncio.Future[dict[str, Any]] = self._loop.create_future()
        self._pong: asyncio.Future[None] = self._loop.create_future()
        self._reason = ""
        self._is_lost = False

    @classmethod
    async def open(cls, broker: Broker, server: Address, name: str, listener: Listener) -> Link:
        """Connect within a few seconds; ConnectionLost or AuthenticationFailed says why not."""
        link = cls(server)
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                await link._loop.create_connection(lambda: link, server.host, server.port)
                await link._introduce(broker, name)
        except (OSError, TimeoutError, ProtocolError) as problem:
            link.abort("")
            reason = str(problem) or f"no answer within {CONNECT_SECONDS} s"
            raise ConnectionLost(f"cannot connect to {server}: {reason}") from problem
        except BaseException:
            link.abort("")
            raise
        if link._is_lost:
            # Between the last word of the server and this one; nobody would hear of it any more.
            raise ConnectionLost(f"the connection to {server} broke at once: {link._reason}")
        link._listener = listener
        return link

    def write(self, data: bytes) -> None:
        assert self._transport is not None
        self._transport.write(data)

    def ask_for_life(self) -> None:
        """The answer counts as heard."""
        self.write(PING)

    def abort(self, reason: str) -> None:
        """End it at once; `reason` is what the listener is told."""
        self._reason = self._reason or reason
        if self._transport is not None:
            self._transport.abort()

    async def _introduce(self, broker: Broker, name: str) -> None:
        info = await self._info
        if info.get("tls_required") or self._server.wants_tls or broker.tls:
            if not (info.get("tls_required") or info.get("tls_available")):
                raise AuthenticationFailed(f"{self._server} does not offer TLS, which was asked for")
            await self._start_tls(broker.tls or ssl.create_default_context())
        else:
            self.peers = info.get("connect_urls") or []
        connect = {
            "verbose": False,
            "pedantic": False,
            "headers": True,
            "no_responders": True,
            "protocol": 1,
            "lang": "python",
            "version": "tenantry",
            "name": name,
            **(broker.credentials.answer(info.get("nonce", "")) or self._server.login()),
        }
        self.write(f"CONNECT {json.dumps(connect)}\r\nSUB {self.inbox}* 1\r\n".encode() + PING)
        await self._pong
        # Limits of the account follow the first pong, so they precede the second.
        self._pong = self._loop.create_future()
        self.ask_for_life()
        await self._pong

    async def _start_tls(self, context: ssl.SSLContext) -> None:
        assert self._transport is not None
        self._parser = Parser(self.inbox, reads_streams=False)
        try:
            secured = await self._loop.start_tls(
                self._transport, self, context, server_hostname=self._server.tls_name or self._server.host
            )
        except ssl.SSLCertVerificationError as problem:
            raise AuthenticationFailed(
                f"the certificate of {self._server} is not trusted: {problem.verify_message}"
            ) from problem
        assert secured is not None
        self._transport = secured

    # -- what asyncio calls -----------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self.heard_at = self._loop.time()
        try:
            operations = self._parser.feed(data)
        except ProtocolError as problem:
            return self.abort(str(problem))
        for operation in operations:
            if self._listener is not None:
                _tell(self._listener, operation)
            if isinstance(operation, Ping):
                self.write(PONG)
            elif isinstance(operation, Pong):
                _settle(self._pong.set_result, self._pong, None)
            elif isinstance(operation, Info):
                self._learn(operation)
            elif isinstance(operation, Refusal):
                self._hear_refusal(operation)

    def connection_lost(self, error: Exception | None) -> None:
        self._is_lost = True
        reason = self._reason or f"the connection to {self._server} broke: {error or 'the server closed it'}"
        if self._listener is not None:
            self._listener.lost(reason)
            return
        refused = reason.lower().startswith(("authorization", "user authentication", "account authentication"))
        problem = AuthenticationFailed(reason) if refused else ConnectionLost(reason)
        for waiting in (self._info, self._pong):
            _settle(waiting.set_exception, waiting, problem)
            if not waiting.cancelled():
                # Whichever of them nobody waited for is not to be complained about.
                waiting.exception()

    def _learn(self, operation: Info) -> None:
        try:
            info: dict[str, Any] = json.loads(operation.document)
            self.max_payload = int(info["max_payload"])
        except (ValueError, KeyError, TypeError):
            return self.abort(f"expected INFO to be an object with max_payload, got: {operation.document[:80]!r}")
        if self._info.done():
            # What came in the open was not yet from whom a certificate names: with TLS the first tells of no peers.
            self.peers = info.get("connect_urls") or self.peers
        _settle(self._info.set_result, self._info, info)

    def _hear_refusal(self, refusal: Refusal) -> None:
        if not refusal.is_about_permissions:
            # All others end the connection.
            self._reason = refusal.reason
        elif self._listener is not None:
            self._listener.refused(refusal)
        else:
            self.abort(f"{self._server} does not let us have an inbox: {refusal.reason}")


def _tell(listener: Listener, operation: Operation) -> None:
    if isinstance(operation, Acknowledgements):
        listener.acknowledged(operation)
    elif isinstance(operation, ConsumedMessages):
        listener.consumed(operation)
    elif isinstance(operation, Delivery):
        listener.answered(operation)
    elif isinstance(operation, Pong):
        listener.ponged()


def _settle(settle: Callable[[Any], None], waiting: asyncio.Future[Any], value: object) -> None:
    if not waiting.done():
        settle(value)
