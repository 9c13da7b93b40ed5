"""The events of a lane folded into its documents, in order, as far as they can be."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import msgspec

from tenantry.application import Event, Projection
from tenantry.errors import DocumentConflict
from tenantry.pipelines.arrivals import Arrival
from tenantry.pipelines.parking import Parking

_ABSENT: Final = object()
_encode: Final = msgspec.json.Encoder().encode
_decode: Final = msgspec.json.Decoder().decode


class Position(NamedTuple):
    """A lane as the pipeline left it."""

    tenant: str
    channel: str
    sequence: int
    generation: int


class Stored(NamedTuple):
    """A document as it is in the database."""

    channel: str
    sequence: int
    document: str | None


class Change(NamedTuple):
    """A document as it is to be."""

    id: str
    document: str | None
    """None: it is deleted."""
    sequence: int
    expected: int | None
    """The sequence at which it was found; None: there was none."""


class LaneFold:
    """`ids` are the documents to load, `fold` makes the changes. What cannot be folded parks the lane there."""

    def __init__(self, projection: Projection, position: Position, arrivals: list[Arrival]) -> None:
        self.position = position
        self.changes: list[Change] = []
        self.parking: Parking | None = None
        self._projection = projection
        self._arrivals = _increasing(arrivals, position.sequence)
        self._applied = len(self._arrivals)
        self._events: list[Event] = []
        self._keys: list[str | None] = []
        self.ids: set[str] = set()
        self._name_documents()

    @property
    def applied(self) -> list[Arrival]:
        return self._arrivals[: self._applied]

    @property
    def sequence(self) -> int:
        """The position that is reached."""
        return self._arrivals[self._applied - 1].sequence if self._applied else self.position.sequence

    def fold(self, stored: Mapping[str, Stored]) -> None:
        events, self._events = self._events, []
        is_careful = False
        while True:
            try:
                self.changes = self._fold(stored, events, is_careful=is_careful)
                return
            except _NotFolded as stop:
                self._park(stop.index, stop.problem)
            except _NotJson:
                # Some event made it so, and is found by looking after each.
                is_careful = True
            # What failed may have changed a state, or an event that is part of one: all of them are made anew.
            events = []

    def fold_again(self, stored: Mapping[str, Stored], most: int, problem: Exception) -> None:
        """As before, but apply so many at most, because of a problem with the next."""
        self._park(most, problem)
        self.fold(stored)

    def _name_documents(self) -> None:
        tenant, channel, *_ = self.position
        key_of, known = self._projection.key_of, self.ids
        for index, arrival in enumerate(self._arrivals):
            try:
                event = arrival.decode(tenant, channel)
                key = key_of(event)
                if key is not None and key not in known:
                    # Half a character, which PostgreSQL has no way to write.
                    key.encode()
                    known.add(key)
            except Exception as problem:
                return self._park(index, problem)
            self._events.append(event)
            self._keys.append(key)

    def _fold(self, stored: Mapping[str, Stored], events: list[Event], *, is_careful: bool = False) -> list[Change]:
        tenant, channel, *_ = self.position
        evolve, start = self._projection.evolve, self._projection.start
        states: dict[str, Any] = {}
        sequences: dict[str, int] = {}
        for index in range(self._applied):
            key = self._keys[index]
            if key is None:
                continue
            try:
                event = events[index] if events else self._arrivals[index].decode(tenant, channel)
                state = states.get(key, _ABSENT)
                if state is _ABSENT:
                    state = self._begin(key, stored.get(key), event.sequence)
                if state is None:
                    state = start()
                states[key] = state = evolve(state, event)
                if is_careful:
                    _encode(state)
            except Exception as problem:
                raise _NotFolded(index, problem) from problem
            sequences[key] = event.sequence
        return [
            Change(id, _as_json(states[id]), sequence, stored[id].sequence if id in stored else None)
            for id, sequence in sequences.items()
        ]

    def _begin(self, id: str, found: Stored | None, sequence: int) -> Any:
        """The state from which to go on; None: there is none."""
        if found is None:
            return None
        if found.sequence >= sequence or found.channel != self.position.channel:
            raise DocumentConflict(
                f"document {id!r} of projection {self._projection.name} was changed by somebody else: expected it to "
                f"be before sequence {sequence} of channel {self.position.channel}, it is at {found.sequence} of "
                f"{found.channel}; find out who writes it, then rebuild the projection"
            )
        return None if found.document is None else _decode(found.document)

    def _park(self, index: int, problem: Exception) -> None:
        self._applied = index
        self.parking = Parking.at(self._arrivals[index].sequence, problem)


def _increasing(arrivals: list[Arrival], last: int) -> list[Arrival]:
    """Those that are new. A lane that has just moved may come twice, from where it was and from where it is."""
    found = []
    for each in arrivals:
        if each.sequence > last:
            found.append(each)
            last = each.sequence
    return found


class _NotFolded(Exception):
    def __init__(self, index: int, problem: Exception) -> None:
        self.index = index
        self.problem = problem


class _NotJson(Exception):
    pass


def _as_json(state: Any) -> str | None:
    if state is None:
        return None
    try:
        return _encode(state).decode()
    except Exception as problem:
        raise _NotJson from problem
