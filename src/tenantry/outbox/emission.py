"""An event that is to be emitted, before the database makes it a CloudEvent."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final

import msgspec

from tenantry.errors import EventInvalid
from tenantry.event import Extension
from tenantry.outbox.emit_trace import Trace

_FIELD_IN_MESSAGE: Final = re.compile(r"`\$\.(\w+)|field `(\w+)`")


class Emission(msgspec.Struct, omit_defaults=True, forbid_unknown_fields=True):
    """What `emit_many` takes many of; the fields are what `emit` takes."""

    tenant: str
    type: str
    data: Any = None
    channel: str = "events"
    id: str | None = None
    source: str | None = None
    subject: str | None = None
    time: datetime | None = None
    dataschema: str | None = None
    traceparent: str | None = None
    tracestate: str | None = None
    extensions: Mapping[str, Extension] | None = None


def read(event: Mapping[str, Any]) -> Emission:
    try:
        return msgspec.convert(event, Emission)
    except msgspec.ValidationError as problem:
        named = _FIELD_IN_MESSAGE.search(str(problem))
        raise EventInvalid((named[1] or named[2]) if named else "", f"expected an emission: {problem}") from None


def join(emission: Emission, trace: Trace | None) -> Emission:
    """Let an event that brings no trace go on with this one."""
    if trace is None or emission.traceparent is not None:
        return emission
    return msgspec.structs.replace(emission, traceparent=trace.parent, tracestate=trace.state)


def arguments(emission: Emission) -> dict[str, str]:
    """What the SQL function `emit` is to be given, as texts. What is left out is not named."""
    given: dict[str, str] = {}
    for name in Emission.__struct_fields__:
        value = getattr(emission, name)
        if value is None:
            continue
        match name:
            case "data" | "extensions":
                given[name] = _encode(value, name)
            case "time":
                given[name] = _time(value).isoformat()
            case _:
                given[name] = _text(name, value)
    return given


def encode_many(emissions: Sequence[Emission]) -> str:
    """The JSON array that the SQL function `emit_many` takes."""
    for emission in emissions:
        if emission.time is not None:
            _time(emission.time)
    return _encode(emissions, "data")


def _encode(value: Any, field: str) -> str:
    try:
        encoded = msgspec.json.encode(value)
    except (TypeError, ValueError, RecursionError) as problem:
        raise EventInvalid(field, f"expected {field} to be what JSON can hold: {problem}") from problem
    # What JSON has no number for is written as null.
    if b"null" in encoded and _has_no_number(msgspec.to_builtins(value, enc_hook=lambda _: None)):
        raise EventInvalid(field, f"expected numbers in {field} to be finite, got: NaN or infinity")
    return encoded.decode()


def _has_no_number(value: Any) -> bool:
    match value:
        case float():
            return not math.isfinite(value)
        case dict():
            return any(map(_has_no_number, value.values()))
        case list() | tuple():
            return any(map(_has_no_number, value))
    return False


def _time(value: datetime) -> datetime:
    if not isinstance(value, datetime):
        raise EventInvalid("time", f"expected time to be a datetime, got: {value!r}")
    if value.tzinfo is None:
        raise EventInvalid("time", f"expected time to have a time zone, got: {value.isoformat()}")
    return value


def _text(name: str, value: str) -> str:
    # Each driver has other words for it, and some no error of the database.
    if "\0" in value:
        raise EventInvalid(name, f"expected {name} to be without the character U+0000, got: {value[:80]!r}")
    return value
