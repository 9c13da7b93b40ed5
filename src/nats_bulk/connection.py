"""One blocking connection to NATS: handshake, keep-alive, reconnect. Not to be shared between threads."""

from __future__ import annotations

import json
import random
import secrets
import socket
import ssl
import struct
import time
from collections.abc import Iterable
from contextlib import suppress
from types import TracebackType
from typing import Any, Final, Self

from nats_bulk.address import Address, parse_addresses
from nats_bulk.credentials import Credentials
from nats_bulk.errors import AuthenticationFailed, BulkError, ConnectionLost, NoAnswer, ProtocolError, ServerRefused
from nats_bulk.wire import (
    CRLF,
    PING,
    PONG,
    Acknowledgements,
    Delivery,
    Info,
    Operation,
    Parser,
    Ping,
    Pong,
    Refusal,
    StoredMessages,
    require_subject,
)

RECEIVE_SIZE: Final = 1 << 18
FIRST_PAUSE: Final = 0.05
LONGEST_PAUSE: Final = 2.0
UNSENT_MILLISECONDS: Final = 20_000

# What the server says when it does not want these credentials; it refuses for passing reasons too.
_NOT_WANTED: Final = ("authorization violation", "user authentication", "account authentication")

Answer = Delivery | Acknowledgements | StoredMessages | Refusal


class Connection:
    """A connection with an inbox of its own, which no other connection shares.

    `url` may name several servers, separated by commas; those that a server tells us about are added. A connection that
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
        self.inbox = f"{require_subject(inbox_prefix)}.{secrets.token_hex(11)}."
        self.max_payload = 0
        self.heard_at = 0.0
        """When something last came from the server, on the monotonic clock."""
        self._servers = parse_addresses(url)
        self._credentials = credentials or Credentials()
        self._tls = tls
        self._tls_first = tls_first
        self._name = name
        self._next_reply = 0
        self._next_question = 0
        self._socket: socket.socket | None = None
        self._ended_because = ""
        self._closed = False
        self._connect_anywhere(self.timeout * len(self._servers))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Connection {self._name} to {self._servers[0]}>"

    def close(self) -> None:
        """Close for good."""
        self._closed = True
        self._drop()

    def abort(self) -> None:
        """Close for good, and forget what the system has not sent yet."""
        if self._socket is not None:
            with suppress(OSError):
                self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.close()

    def ping(self) -> None:
        """Ask for a sign of life; `heard_at` tells of it."""
        self.send(PING)

    def fileno(self) -> int:
        """For those who wait for several connections at once."""
        return self._open_socket().fileno()

    # -- messages ---------------------------------------------------------------------------------------------------

    def new_replies(self, count: int) -> int:
        """Reserve numbers that acknowledgements will come back with, never used before here; return the first."""
        first = self._next_reply
        self._next_reply += count
        return first

    def was_asked(self, reply: int) -> bool:
        return 0 <= reply < self._next_reply

    def send(self, data: bytes) -> None:
        if self._ended_because:
            # Part of a message may be on the wire; anything more would become part of it.
            raise ConnectionLost(self._ended_because)
        try:
            self._open_socket().sendall(data)
        except OSError as problem:
            # Not dropped yet: answers that arrived before the end can still be read.
            self._ended_because = f"the connection to {self._servers[0]} broke: {_reason(problem)}"
            raise ConnectionLost(self._ended_because) from problem

    def receive(self, timeout: float | None = None) -> list[Answer]:
        """Wait for messages and refusals; pings are answered on the way.

        Empty after `timeout` seconds of silence. Without a timeout, empty after the connection's own, and only if the
        server is still there: one that does not even answer a ping has been lost.
        """
        if timeout is not None:
            return self._receive_within(timeout)
        answers = self._receive_within(self.timeout)
        if not answers:
            self.send(PING)
            answers = self._receive_within(self.timeout, until_pong=True)
        return answers

    def wake(self) -> None:
        """Answer pings that piled up while nobody was reading, and reconnect if the server gave up on us."""
        try:
            while self._receive_within(0.0):
                pass
        except ConnectionLost:
            self.reconnect()

    def reconnect(self) -> None:
        """Connect again, to whichever server answers, waiting longer after each round, for `reconnect_for` seconds."""
        self._drop()
        deadline = time.monotonic() + self.reconnect_for
        pause = FIRST_PAUSE
        while True:
            try:
                return self._connect_anywhere(deadline - time.monotonic())
            except ConnectionLost:
                if self._closed or time.monotonic() + pause > deadline:
                    raise
            time.sleep(pause * random.uniform(0.5, 1.0))
            pause = min(pause * 2, LONGEST_PAUSE)

    # -- questions --------------------------------------------------------------------------------------------------

    def ask(self, questions: Iterable[tuple[str, bytes]]) -> str:
        """Send questions without waiting; answers come to the returned subject with the number of the question."""
        # A letter keeps answers to questions apart from acknowledgements, which have a bare number there.
        answers_to = f"{self.inbox}q{self._next_question}-"
        self._next_question += 1
        self.send(
            b"".join(
                f"PUB {require_subject(subject)} {answers_to}{number} {len(payload)}\r\n".encode() + payload + CRLF
                for number, (subject, payload) in enumerate(questions)
            )
        )
        return answers_to

    def request(self, subject: str, payload: bytes) -> bytes:
        """One question, one answer; for the control requests beside the bulk work."""
        return self.request_many([(subject, payload)])[0]

    def request_many(self, questions: Iterable[tuple[str, bytes]]) -> list[bytes]:
        """Ask all the questions at once and return the answers in the same order."""
        answers: list[bytes] = []
        for answer in self.request_each(questions):
            if isinstance(answer, BulkError):
                raise answer
            answers.append(answer)
        return answers

    def request_each(self, questions: Iterable[tuple[str, bytes]]) -> list[bytes | BulkError]:
        """The same for those who can do without some answers: each is one, or why there is none."""
        asked = list(questions)
        answers_to = self.ask(asked).encode()
        answers: dict[int, bytes | BulkError] = {}
        while len(answers) < len(asked):
            received = self.receive()
            if not received:
                break
            for answer in received:
                if isinstance(answer, Refusal):
                    # It names the subject and not the question.
                    for number, (subject, _) in enumerate(asked):
                        if answer.is_about(subject):
                            answers.setdefault(number, ServerRefused(answer.reason))
                elif isinstance(answer, Delivery) and answer.subject.startswith(answers_to):
                    number = int(answer.subject[len(answers_to) :])
                    answers[number] = answer.payload
                    if answer.header.startswith(b"NATS/1.0 503"):
                        subject, _ = asked[number]
                        answers[number] = ServerRefused(f"nobody answers {subject}; is JetStream on for this account?")
        return [
            answers.get(number, NoAnswer(f"no answer to {subject} within {self.timeout} s"))
            for number, (subject, _) in enumerate(asked)
        ]

    # -- the connection itself --------------------------------------------------------------------------------------

    def _connect_anywhere(self, seconds: float) -> None:
        """Try each server once, within the time given. Refused credentials are final only if every server says so."""
        deadline = time.monotonic() + seconds
        problems: list[BulkError] = []
        for _ in range(len(self._servers)):
            if self._closed:
                raise ConnectionLost("the connection was closed")
            try:
                return self._connect(self._servers[0])
            except (ConnectionLost, AuthenticationFailed) as problem:
                problems.append(problem)
                self._servers.append(self._servers.pop(0))
            if time.monotonic() > deadline:
                break
        passing = [problem for problem in problems if isinstance(problem, ConnectionLost)]
        raise (passing or problems)[-1]

    def _connect(self, server: Address) -> None:
        self._ended_because = ""
        self._parser = Parser(self.inbox)
        try:
            self._socket = socket.create_connection((server.host, server.port), self.timeout)
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if hasattr(socket, "TCP_USER_TIMEOUT"):
                # Nor may the system go on trying to send for a quarter of an hour, as it does by default.
                self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, UNSENT_MILLISECONDS)
            if self._tls_first:
                self._start_tls(server)
            info = self._first_info(server)
            if not self._tls_first and (info.get("tls_required") or server.wants_tls or self._tls):
                if not (info.get("tls_required") or info.get("tls_available")):
                    raise AuthenticationFailed(f"{server} does not offer TLS, which was asked for")
                self._start_tls(server)
                # What came in the open was not yet from whom the certificate names: no peers are learnt from it.
                info.pop("connect_urls", None)
            self._learn(info)
            self._introduce(server, info.get("nonce", ""))
        except (OSError, ConnectionLost) as problem:
            self._drop()
            reason = _reason(problem) if isinstance(problem, OSError) else str(problem)
            raise ConnectionLost(f"cannot connect to {server}: {reason}") from problem
        except BaseException:
            self._drop()
            raise

    def _start_tls(self, server: Address) -> None:
        context = self._tls or ssl.create_default_context()
        try:
            self._socket = context.wrap_socket(self._open_socket(), server_hostname=server.tls_name)
        except ssl.SSLCertVerificationError as problem:
            raise AuthenticationFailed(
                f"the certificate of {server} is not trusted: {problem.verify_message}"
            ) from problem
        self._parser = Parser(self.inbox)

    def _first_info(self, server: Address) -> dict[str, Any]:
        operations: list[Operation] | None = []
        while operations == []:
            operations = self._read(self.timeout)
        if operations is None:
            raise ConnectionLost(f"it did not introduce itself within {self.timeout} s")
        if not isinstance(operations[0], Info):
            raise ProtocolError(f"expected {server} to introduce itself with INFO, got: {operations[0]}")
        return _document(operations[0])

    def _introduce(self, server: Address, nonce: str) -> None:
        connect = {
            "verbose": False,
            "pedantic": False,
            "headers": True,
            "no_responders": True,
            "protocol": 1,
            "lang": "python",
            "version": "nats_bulk",
            "name": self._name,
            **(self._credentials.answer(nonce) or server.login()),
        }
        self.send(f"CONNECT {json.dumps(connect)}\r\nSUB {self.inbox}* 1\r\n".encode() + PING)
        self._await_pong()
        # Limits of the account follow the first pong, so they precede the second.
        self.send(PING)
        self._await_pong()

    def _await_pong(self) -> None:
        try:
            answers = self._receive_within(self.timeout, until_pong=True)
        except ConnectionLost:
            if self._ended_because.lower().startswith(_NOT_WANTED):
                raise AuthenticationFailed(f"{self._servers[0]} refused us: {self._ended_because}") from None
            raise
        for answer in answers:
            if isinstance(answer, Refusal):
                raise AuthenticationFailed(f"{self._servers[0]} does not let us have an inbox: {answer.reason}")

    def _receive_within(self, seconds: float, *, until_pong: bool = False) -> list[Answer]:
        """Answers as soon as there are some; none after so many seconds, or once a pong has come if that is awaited."""
        deadline = time.monotonic() + seconds
        while True:
            operations = self._read(max(0.0, deadline - time.monotonic()))
            if operations is None:
                if until_pong:
                    raise self._lost(f"no answer for {seconds} s")
                return []
            answers = self._digest(operations)
            if answers or (until_pong and any(isinstance(each, Pong) for each in operations)):
                return answers
            if self._ended_because:
                raise self._lost("")

    def _read(self, timeout: float) -> list[Operation] | None:
        """What arrived, possibly nothing complete yet; None when nothing came in time."""
        try:
            connected = self._open_socket()
            # A timeout of zero makes the socket non-blocking, which is what `wake` wants.
            connected.settimeout(timeout)
            data = connected.recv(RECEIVE_SIZE)
            connected.settimeout(self.timeout)
        except (TimeoutError, BlockingIOError, ssl.SSLWantReadError):
            connected.settimeout(self.timeout)
            return None
        except OSError as problem:
            raise self._lost(_reason(problem)) from problem
        if not data:
            raise self._lost("the server closed it")
        self.heard_at = time.monotonic()
        try:
            return self._parser.feed(data)
        except ProtocolError:
            self._drop()
            raise

    def _digest(self, operations: list[Operation]) -> list[Answer]:
        """Act on what concerns the connection; return the rest."""
        answers: list[Answer] = []
        for operation in operations:
            if isinstance(operation, Delivery | Acknowledgements | StoredMessages):
                answers.append(operation)
            elif isinstance(operation, Ping):
                with suppress(ConnectionLost):  # the next read tells of it
                    self.send(PONG)
            elif isinstance(operation, Info):
                self._learn(_document(operation))
            elif isinstance(operation, Refusal):
                if operation.is_about_permissions:
                    answers.append(operation)
                else:
                    # All others end the connection; what came before is still good, so the next read tells of the end.
                    self._ended_because = operation.reason
                    break
        return answers

    def _learn(self, info: dict[str, Any]) -> None:
        self.max_payload = info.get("max_payload", self.max_payload)
        for place in info.get("connect_urls") or ():
            peer = self._servers[0].peer(place)
            if (peer.host, peer.port) not in {(known.host, known.port) for known in self._servers}:
                self._servers.append(peer)

    def _open_socket(self) -> socket.socket:
        if self._socket is None:
            raise ConnectionLost(self._ended_because or "the connection is closed")
        return self._socket

    def _lost(self, reason: str) -> ConnectionLost:
        self._ended_because = self._ended_because or f"the connection to {self._servers[0]} broke: {reason}"
        self._drop()
        return ConnectionLost(self._ended_because)

    def _drop(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None


def _document(info: Info) -> dict[str, Any]:
    try:
        document: dict[str, Any] = json.loads(info.document)
        int(document["max_payload"])
    except (ValueError, KeyError, TypeError):
        raise ProtocolError(f"expected INFO to be an object with max_payload, got: {info.document[:80]!r}") from None
    return document


def _reason(problem: OSError) -> str:
    return problem.strerror or str(problem)
