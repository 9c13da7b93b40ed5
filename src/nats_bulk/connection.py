"""One blocking connection to NATS: handshake, keep-alive, reconnect. Not to be shared between threads."""

from __future__ import annotations

import json
import random
import secrets
import socket
import ssl
import time
from collections.abc import Iterable
from types import TracebackType
from typing import Any, Final, Self
from urllib.parse import SplitResult, urlsplit

from nats_bulk.credentials import Credentials
from nats_bulk.errors import AuthenticationFailed, ConnectionLost, NoAnswer, ProtocolError, ServerRefused
from nats_bulk.wire import CRLF, PING, PONG, Acknowledgements, Delivery, Info, Operation, Parser, Ping, Pong, Refusal

RECEIVE_SIZE: Final = 262144
FIRST_PAUSE: Final = 0.05
LONGEST_PAUSE: Final = 2.0

Answer = Delivery | Acknowledgements | Refusal


class Connection:
    """A connection with an inbox of its own, which no other connection shares.

    `url` may name several servers, separated by commas; those the server tells us about are added. A connection that
    breaks raises ConnectionLost from the call that noticed; `reconnect` restores it.
    """

    def __init__(
        self,
        url: str,
        *,
        credentials: Credentials | None = None,
        tls: ssl.SSLContext | None = None,
        tls_first: bool = False,
        name: str = "nats_bulk",
        inbox_prefix: str = "_INBOX",
        timeout: float = 5.0,
        reconnect_for: float = 30.0,
    ) -> None:
        self.timeout = timeout
        self.reconnect_for = reconnect_for
        self.inbox = f"{inbox_prefix}.{secrets.token_hex(11)}."
        self.max_payload = 0
        self._servers = [_server(part) for part in url.split(",")]
        self._credentials = credentials or Credentials()
        self._tls = tls
        self._tls_first = tls_first
        self._name = name
        self._next_reply = 0
        self._socket: socket.socket | None = None
        self._connect_anywhere()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Connection {self._name} to {_address(self._servers[0])}>"

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def new_replies(self, count: int = 1) -> int:
        """Reserve `count` reply numbers, never used before on this connection; return the first."""
        first = self._next_reply
        self._next_reply += count
        return first

    def was_asked(self, reply: int) -> bool:
        return 0 <= reply < self._next_reply

    def reply_number(self, delivery: Delivery) -> int:
        """The number behind our inbox in the subject of an answer."""
        try:
            return int(delivery.subject[len(self.inbox) :])
        except ValueError:
            raise ProtocolError(f"expected an answer to our inbox, got one to {delivery.subject!r}") from None

    def send(self, data: bytes) -> None:
        if self._socket is None:
            raise ConnectionLost("the connection is closed")
        try:
            self._socket.sendall(data)
        except OSError as problem:
            raise self._lost(problem) from problem

    def receive(self, timeout: float | None = None) -> list[Answer]:
        """Wait for messages and refusals; pings are answered on the way. Empty after `timeout` seconds of silence."""
        deadline = time.monotonic() + (self.timeout if timeout is None else timeout)
        while True:
            operations = self._read(max(0.0, deadline - time.monotonic()))
            if operations is None:
                return []
            answers = self._digest(operations)
            if answers:
                return answers

    def wake(self) -> None:
        """Answer pings that piled up while nobody was reading, and reconnect if the server gave up on us."""
        try:
            while operations := self._read(0.0):
                self._digest(operations)
        except ConnectionLost:
            self.reconnect()

    def reconnect(self) -> None:
        """Connect again, to whichever server answers, waiting longer after each round, for `reconnect_for` seconds."""
        self.close()
        deadline = time.monotonic() + self.reconnect_for
        pause = FIRST_PAUSE
        while True:
            try:
                return self._connect_anywhere()
            except ConnectionLost:
                if time.monotonic() + pause > deadline:
                    raise
            time.sleep(pause * random.uniform(0.5, 1.0))
            pause = min(pause * 2, LONGEST_PAUSE)

    def request(self, subject: str, payload: bytes) -> bytes:
        """One question, one answer; for the control requests beside the bulk work."""
        return self.request_many([(subject, payload)])[0]

    def request_many(self, questions: Iterable[tuple[str, bytes]]) -> list[bytes]:
        """Ask all the questions at once and return the answers in the same order."""
        asked = list(questions)
        first = self.new_replies(len(asked))
        self.send(
            b"".join(
                f"PUB {subject} {self.inbox}{first + number} {len(payload)}\r\n".encode() + payload + CRLF
                for number, (subject, payload) in enumerate(asked)
            )
        )
        answers: dict[int, bytes] = {}
        while len(answers) < len(asked):
            received = self.receive()
            if not received:
                raise NoAnswer(f"no answer to {asked[0][0]} within {self.timeout} s")
            for answer in received:
                if isinstance(answer, Refusal):
                    raise ServerRefused(answer.reason)
                if isinstance(answer, Acknowledgements):
                    continue  # late ones, of an earlier publish
                number = self.reply_number(answer) - first
                if not 0 <= number < len(asked):
                    continue  # a late answer to an earlier question
                if answer.header.startswith(b"NATS/1.0 503"):
                    raise ServerRefused(f"nobody answers {asked[number][0]}: is JetStream enabled for this account?")
                answers[number] = answer.payload
        return [answers[number] for number in range(len(asked))]

    # -- the connection itself ------------------------------------------------------------------------------------

    def _connect_anywhere(self) -> None:
        problem: ConnectionLost | None = None
        for _ in range(len(self._servers)):
            try:
                return self._connect(self._servers[0])
            except ConnectionLost as lost:
                problem = lost
                self._servers.append(self._servers.pop(0))
        assert problem is not None
        raise problem

    def _connect(self, server: SplitResult) -> None:
        self._parser = Parser(self.inbox)
        try:
            self._socket = socket.create_connection((server.hostname, server.port or 4222), self.timeout)
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self._tls_first:
                self._start_tls(server)
            info = self._first_info(server)
            if not self._tls_first and (info.get("tls_required") or server.scheme == "tls" or self._tls):
                if not (info.get("tls_required") or info.get("tls_available")):
                    raise AuthenticationFailed(f"{_address(server)} does not offer TLS, which was asked for")
                self._start_tls(server)
            self._introduce(server, info)
        except (OSError, ConnectionLost) as problem:
            self.close()
            reason = problem.strerror or str(problem) if isinstance(problem, OSError) else str(problem)
            raise ConnectionLost(f"cannot connect to {_address(server)}: {reason}") from problem
        except BaseException:
            self.close()
            raise

    def _start_tls(self, server: SplitResult) -> None:
        assert self._socket is not None
        context = self._tls or ssl.create_default_context()
        try:
            self._socket = context.wrap_socket(self._socket, server_hostname=server.hostname)
        except ssl.SSLCertVerificationError as problem:
            raise AuthenticationFailed(
                f"the certificate of {_address(server)} is not trusted: {problem.verify_message}"
            ) from problem

    def _first_info(self, server: SplitResult) -> dict[str, Any]:
        operations: list[Operation] | None = []
        while operations == []:
            operations = self._read(self.timeout)
        if operations is None:
            raise ConnectionLost(f"it did not introduce itself within {self.timeout} s")
        if not isinstance(operations[0], Info):
            raise ProtocolError(f"expected {_address(server)} to introduce itself with INFO, got: {operations[0]}")
        return self._learn(operations[0])

    def _introduce(self, server: SplitResult, info: dict[str, Any]) -> None:
        answer = self._credentials.answer(info.get("nonce", ""))
        if not answer and server.username:
            answer = (
                {"user": server.username, "pass": server.password}
                if server.password is not None
                else {"auth_token": server.username}
            )
        connect = {
            "verbose": False,
            "pedantic": False,
            "headers": True,
            "no_responders": True,
            "protocol": 1,
            "lang": "python",
            "version": "nats_bulk",
            "name": self._name,
            **answer,
        }
        self.send(f"CONNECT {json.dumps(connect)}\r\nSUB {self.inbox}* 1\r\n".encode() + PING)
        deadline = time.monotonic() + self.timeout
        while True:
            operations = self._read(max(0.0, deadline - time.monotonic()))
            if operations is None:
                raise ConnectionLost(f"no answer within {self.timeout} s")
            for operation in operations:
                if isinstance(operation, Refusal):
                    raise AuthenticationFailed(f"{_address(server)} refused the connection: {operation.reason}")
                if isinstance(operation, Pong):
                    return

    def _read(self, timeout: float) -> list[Operation] | None:
        """What arrived, possibly nothing complete yet; None when nothing came in time."""
        if self._socket is None:
            raise ConnectionLost("the connection is closed")
        try:
            # A timeout of zero makes the socket non-blocking, which is what `wake` wants.
            self._socket.settimeout(timeout)
            data = self._socket.recv(RECEIVE_SIZE)
        except (TimeoutError, BlockingIOError, ssl.SSLWantReadError):
            return None
        except OSError as problem:
            raise self._lost(problem) from problem
        finally:
            if self._socket is not None:
                self._socket.settimeout(self.timeout)
        if not data:
            raise self._lost(None)
        try:
            return self._parser.feed(data)
        except ProtocolError:
            self.close()
            raise

    def _digest(self, operations: list[Operation]) -> list[Answer]:
        """Act on what concerns the connection; return the rest."""
        answers: list[Answer] = []
        for operation in operations:
            if isinstance(operation, Delivery | Acknowledgements):
                answers.append(operation)
            elif isinstance(operation, Ping):
                self.send(PONG)
            elif isinstance(operation, Info):
                self._learn(operation)
            elif isinstance(operation, Refusal):
                if not operation.reason.lower().startswith("permissions violation"):
                    # All others end the connection: https://docs.nats.io/reference/reference-protocols/nats-protocol#okerr
                    self.close()
                    raise ConnectionLost(f"the server ended the connection: {operation.reason}")
                answers.append(operation)
        return answers

    def _learn(self, info: Info) -> dict[str, Any]:
        try:
            document: dict[str, Any] = json.loads(info.document)
            self.max_payload = document["max_payload"]
        except (ValueError, KeyError, TypeError):
            raise ProtocolError(
                f"expected INFO to be an object with max_payload, got: {info.document[:80]!r}"
            ) from None
        known = {_address(server) for server in self._servers}
        template = self._servers[0]
        for address in document.get("connect_urls") or ():
            if address not in known:
                self._servers.append(template._replace(netloc=_userinfo(template) + address))
        return document

    def _lost(self, problem: OSError | None) -> ConnectionLost:
        self.close()
        reason = (problem.strerror or str(problem)) if problem else "the server closed it"
        return ConnectionLost(f"the connection to {_address(self._servers[0])} broke: {reason}")


def _server(url: str) -> SplitResult:
    url = url.strip()
    server = urlsplit(url if "://" in url else f"nats://{url}")
    if server.scheme not in ("nats", "tls") or not server.hostname:
        raise ValueError(f"expected a server address like nats://host:4222, got: {url}")
    return server


def _address(server: SplitResult) -> str:
    """Host and port, without the secrets that a URL can carry."""
    host = f"[{server.hostname}]" if ":" in (server.hostname or "") else server.hostname
    return f"{host}:{server.port or 4222}"


def _userinfo(server: SplitResult) -> str:
    return server.netloc.rpartition("@")[0] + "@" if "@" in server.netloc else ""
