"""What the driver asks JetStream: which streams there are and how far they reach, in few round trips for any number."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any, Final, NamedTuple, TypeVar

from nats_bulk import AuthenticationFailed, BulkError, Connection, ConnectionLost, NoAnswer, ServerRefused, StreamGone
from nats_bulk.read import nanoseconds, refusal
from pyspark_nats.access import Access
from pyspark_nats.connections import CONNECTIONS, PATIENCE, PAUSE
from pyspark_nats.errors import StreamsUnavailable

# A listing brings all the streams of an account, 256 a page; for a few of them, asking one by one is cheaper.
FEW: Final = 64
QUESTIONS_AT_ONCE: Final = 1000

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


class Gone(NamedTuple):
    """There is no such stream."""


class Silent(NamedTuple):
    """Nobody can say just now how it is: it has no leader, or we may not ask."""

    reason: str


Found = State | Gone | Silent


class Broker:
    """One account on one server or cluster. What cannot be asked now is asked again, for so many seconds."""

    def __init__(self, access: Access, patience: float = PATIENCE) -> None:
        self._access = access
        self._patience = patience

    def list_all(self) -> dict[str, State | Silent]:
        return self._insist(self._list)

    def describe(self, names: Iterable[str]) -> dict[str, Found]:
        """How each of these streams is. One that does not answer holds nobody else up."""
        asked = list(names)
        found: dict[str, Found] = {}
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
        # Whose last messages were deleted has none that late, although its last time is.
        found = {name: states[name].next for name in states if low[name] < high[name]}
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

    def _list(self, connection: Connection) -> dict[str, State | Silent]:
        subject = f"{self._access.api_prefix}.STREAM.LIST"
        first = _answer(connection.request(subject, b'{"offset":0}'))
        offsets = range(first["limit"], first["total"], first["limit"])
        questions = [(subject, json.dumps({"offset": offset}).encode()) for offset in offsets]
        pages = [first, *map(_answer, connection.request_many(questions) if questions else ())]
        listed: dict[str, State | Silent] = {}
        for page in pages:
            listed |= {info["config"]["name"]: _state(info) for info in page["streams"] or ()}
            # A cluster lists a stream whose server is away, or that has no leader, as if it were empty.
            listed |= {name: Silent("it has no leader") for name in page.get("missing") or ()}
        return listed

    def _ask_each(self, names: list[str], connection: Connection) -> dict[str, Found]:
        questions = [(f"{self._access.api_prefix}.STREAM.INFO.{name}", b"") for name in names]
        found: dict[str, Found] = {}
        for name, answer in zip(names, connection.request_each(questions), strict=True):
            try:
                if isinstance(answer, BulkError):
                    raise answer
                found[name] = _state(_answer(answer))
            except StreamGone:
                found[name] = Gone()
            except (NoAnswer, ServerRefused) as problem:
                found[name] = Silent(str(problem))
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
        """A broker that restarts must not end a query, so it is waited for."""
        deadline = time.monotonic() + self._patience
        while True:
            try:
                left = max(0.0, deadline - time.monotonic())
                connection = CONNECTIONS.use(self._access, left)
                connection.reconnect_for = left
                connection.wake()
                return question(connection)
            except AuthenticationFailed as problem:
                raise StreamsUnavailable(f"{problem}; check nats.creds, or the user in nats.url") from None
            except (ConnectionLost, NoAnswer) as problem:
                if time.monotonic() + PAUSE > deadline:
                    raise StreamsUnavailable(f"NATS does not answer: {problem}") from None
            time.sleep(PAUSE)


def _portions(names: list[str]) -> Iterator[list[str]]:
    for start in range(0, len(names), QUESTIONS_AT_ONCE):
        yield names[start : start + QUESTIONS_AT_ONCE]


def _answer(payload: bytes) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(payload)
    if error := document.get("error"):
        raise refusal(error, "JetStream says no")
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
