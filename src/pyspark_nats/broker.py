"""What the driver asks JetStream: which streams there are and how far they reach, in few round trips for any number."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any, Final, NamedTuple, TypeVar

from nats_bulk import Connection, ConnectionLost, NoAnswer, ServerRefused
from nats_bulk.read import nanoseconds
from pyspark_nats.access import Access
from pyspark_nats.connections import CONNECTIONS, Connections
from pyspark_nats.errors import StreamsUnavailable

# A listing brings all the streams of an account, 256 a page; for a few of them, asking one by one is cheaper.
FEW: Final = 64
QUESTIONS_AT_ONCE: Final = 1000
PATIENCE: Final = 30.0
PAUSE: Final = 0.2

_STREAM_NOT_FOUND: Final = 10059
_MESSAGE_NOT_FOUND: Final = 10037

_T = TypeVar("_T")


class State(NamedTuple):
    """A stream as its leader describes it."""

    first: int
    next: int
    """The sequence that the next message will get."""
    bytes_each: float
    created: int
    first_at: int
    last_at: int
    direct: bool


class Gone:
    """There is no such stream."""


GONE: Final = Gone()


class Broker:
    """One account on one server or cluster. What cannot be asked now is asked again; reading changes nothing."""

    def __init__(self, access: Access, connections: Connections = CONNECTIONS) -> None:
        self._access = access
        self._connections = connections

    def list_all(self) -> dict[str, State]:
        return self._insist(self._list)

    def describe(self, names: Iterable[str]) -> dict[str, State | Gone]:
        """The states of these streams. One that does not answer is left out, and holds nobody else up."""
        asked = list(names)
        found: dict[str, State | Gone] = {}
        if len(asked) > FEW:
            try:
                listed = self.list_all()
                found = {name: listed[name] for name in asked if name in listed}
            except ServerRefused:
                pass  # who may not list may still ask for those that it reads
        rest = [name for name in asked if name not in found]
        for some in _portions(rest):
            found |= self._insist(partial(self._ask_each, some))
        return found

    def sequences_at(self, states: Mapping[str, State], moment: int) -> dict[str, int]:
        """Per stream, the first sequence stored at `moment` or later; the next one where there is none yet.

        By halving, for all streams at once: a server asked by time may say "none" after a purge though there are some.
        """
        low = {name: state.first for name, state in states.items()}
        high = {name: state.next for name, state in states.items()}
        for name, state in states.items():
            if moment <= state.first_at:
                high[name] = low[name]
            elif moment > state.last_at:
                low[name] = high[name]
        found: dict[str, int] = {}
        while searched := [name for name in states if low[name] < high[name]]:
            middles = {name: (low[name] + high[name]) // 2 for name in searched}
            for some in _portions(searched):
                stamps = self._insist(partial(self._stamps, {name: middles[name] for name in some}))
                for name, (sequence, stamp) in stamps.items():
                    if stamp is None:
                        high[name] = middles[name]
                    elif stamp >= moment:
                        high[name], found[name] = middles[name], sequence
                    else:
                        low[name] = sequence + 1
        return low | found

    # -- questions --------------------------------------------------------------------------------------------------

    def _list(self, connection: Connection) -> dict[str, State]:
        subject = f"{self._access.api_prefix}.STREAM.LIST"
        first = _answer(connection.request(subject, b'{"offset":0}'))
        offsets = range(first["limit"], first["total"], first["limit"])
        questions = [(subject, json.dumps({"offset": offset}).encode()) for offset in offsets]
        pages = [first, *map(_answer, connection.request_many(questions) if questions else ())]
        return {info["config"]["name"]: _state(info) for page in pages for info in page["streams"] or ()}

    def _ask_each(self, names: list[str], connection: Connection) -> dict[str, State | Gone]:
        questions = [(f"{self._access.api_prefix}.STREAM.INFO.{name}", b"") for name in names]
        found: dict[str, State | Gone] = {}
        for name, answer in zip(names, connection.request_each(questions), strict=True):
            info = json.loads(answer or b'{"error": {}}')
            if "error" not in info:
                found[name] = _state(info)
            elif info["error"].get("err_code") == _STREAM_NOT_FOUND:
                found[name] = GONE
        return found

    def _stamps(self, sequences: Mapping[str, int], connection: Connection) -> dict[str, tuple[int, int | None]]:
        """The message at each sequence, or the next one: where it is and when it was stored."""
        questions = [
            (
                f"{self._access.api_prefix}.STREAM.MSG.GET.{name}",
                json.dumps({"seq": sequence, "next_by_subj": ">"}).encode(),
            )
            for name, sequence in sequences.items()
        ]
        found: dict[str, tuple[int, int | None]] = {}
        for (name, sequence), answer in zip(sequences.items(), connection.request_many(questions), strict=True):
            if json.loads(answer).get("error", {}).get("err_code") == _MESSAGE_NOT_FOUND:
                found[name] = sequence, None
            else:
                message = _answer(answer)["message"]
                found[name] = message["seq"], nanoseconds(message["time"].encode())
        return found

    def _insist(self, question: Callable[[Connection], _T]) -> _T:
        """A broker that restarts must not end a query, so it is waited for, a while."""
        deadline = time.monotonic() + PATIENCE
        while True:
            connection: Connection | None = None
            try:
                connection = self._connections.use(self._access)
                connection.wake()
                return question(connection)
            except (ConnectionLost, NoAnswer) as problem:
                if time.monotonic() > deadline:
                    raise StreamsUnavailable(f"NATS does not answer: {problem}") from problem
                time.sleep(PAUSE)
                if connection is not None and isinstance(problem, ConnectionLost):
                    connection.reconnect()


def _portions(names: list[str]) -> Iterator[list[str]]:
    for start in range(0, len(names), QUESTIONS_AT_ONCE):
        yield names[start : start + QUESTIONS_AT_ONCE]


def _answer(payload: bytes) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(payload)
    if error := document.get("error"):
        raise ServerRefused(f"JetStream refused: {error.get('description', error)}")
    return document


def _state(info: dict[str, Any]) -> State:
    state = info["state"]
    last = state["last_seq"]
    return State(
        # A stream that never had a message says that its first is 0.
        first=max(1, state["first_seq"]),
        next=last + 1,
        bytes_each=state["bytes"] / state["messages"] if state["messages"] else 1.0,
        created=nanoseconds(info["created"].encode()),
        first_at=nanoseconds(state["first_ts"].encode()) if state["messages"] else 0,
        last_at=nanoseconds(state["last_ts"].encode()) if state["messages"] else 0,
        direct=bool(info["config"].get("allow_direct")),
    )
