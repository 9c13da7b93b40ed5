"""Turns earliest, latest, given sequences and times into a sequence for each stream."""

from __future__ import annotations

from collections.abc import Mapping

from pyspark_nats.broker import Broker, State
from pyspark_nats.errors import OptionInvalid
from pyspark_nats.options import EARLIEST, LATEST, Moment
from pyspark_nats.selection import Selection


def first_of(key: str, state: State, selection: Selection) -> int:
    """Where reading begins of a stream that was not read before, as far as the catalog says."""
    start = selection.streams[key].start
    return state.first if start is None else max(state.first, start)


def resolve_start(moment: Moment, states: Mapping[str, State], selection: Selection) -> dict[str, int]:
    """The same as `resolve`, unless the catalog says where to start."""
    said = {key for key in states if selection.streams[key].start is not None}
    rest = {key: state for key, state in states.items() if key not in said}
    return resolve(moment, rest, selection) | {key: first_of(key, states[key], selection) for key in said}


def resolve(moment: Moment, states: Mapping[str, State], selection: Selection) -> dict[str, int]:
    """The sequence that comes first at or after this moment, by stream."""
    if moment.nanoseconds is not None:
        return _by_time(moment.nanoseconds, states, selection)
    if unknown := sorted(set(moment.by_stream) - set(states)):
        raise OptionInvalid(f"expected offsets of streams that are read, got one for {', '.join(unknown)}")
    return {key: _by_number(key, moment.by_stream.get(key, moment.everywhere), state) for key, state in states.items()}


def _by_number(key: str, sequence: int, state: State) -> int:
    if sequence > state.next:
        raise OptionInvalid(
            f"expected an offset of {key} up to {state.next}, the next sequence it will have, got: {sequence}"
        )
    return {EARLIEST: state.first, LATEST: state.next}.get(sequence, max(1, sequence))


def _by_time(moment: int, states: Mapping[str, State], selection: Selection) -> dict[str, int]:
    found: dict[str, int] = {}
    for access, together in selection.by_place(selection.streams[key] for key in states):
        sequences = Broker(access).sequences_at({stream.name: states[stream.key] for stream in together}, moment)
        found |= {stream.key: sequences[stream.name] for stream in together}
    return found
