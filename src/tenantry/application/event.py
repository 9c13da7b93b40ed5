"""An event as an application sees it."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any, Final, Generic

import msgspec
from typing_extensions import TypeVar

from tenantry.errors import ApplicationInvalid

Data = TypeVar("Data", default=Any)

LONGEST_KEY: Final = 256

_ATTRIBUTES_AS_KEY: Final = ("subject", "id", "source", "type")


# What an event says itself must not land in what the boundary says of it.
_NAMES: Final = {"trace": "traceparent", "tenant": ".tenant", "channel": ".channel", "sequence": ".sequence"}


class Event(msgspec.Struct, Generic[Data], frozen=True, kw_only=True, rename=_NAMES):
    """An event as projections and handlers see it."""

    id: str
    source: str
    type: str
    subject: str | None = None
    """What in the source it is about."""
    time: datetime | None = None
    """When it happened, if it says so."""
    data: Data = None  # type: ignore[assignment]
    """Its JSON, decoded; bytes, if it came as `data_base64`."""
    trace: str | None = None
    """Its `traceparent`."""
    tenant: str = ""
    """Whose it is: that of the stream it came through, whatever the event says itself."""
    channel: str = ""
    sequence: int = 0
    """Its place in the lane."""


Key = str | Callable[[Event[Any]], str | int | None]


def key_of(key: Key, event: Event[Any], what: str) -> str | None:
    """What the event has as key; None: it has none. `what` the key is of, an error says."""
    found = key(event) if callable(key) else _follow(key, event)
    if found is None:
        return None
    described = "its function" if callable(key) else key
    if isinstance(found, bool) or not isinstance(found, str | int):
        raise TypeError(
            f"expected the key of {what} to be a string, a whole number or None, "
            f"got: {type(found).__name__} {str(found)[:80]!r} from {described} of event {event.id}"
        )
    text = str(found)
    # PostgreSQL keeps no text with a zero character in it.
    if not 0 < len(text) <= LONGEST_KEY or "\0" in text:
        raise ValueError(
            f"expected the key of {what} to be 1 to {LONGEST_KEY} characters, none of them zero, "
            f"got: {text[:80]!r} from {described} of event {event.id}"
        )
    return text


def require_key_path(what: str, key: str) -> None:
    first, *rest = str(key).split(".")
    if not (first in _ATTRIBUTES_AS_KEY and not rest) and not (first == "data" and all(rest)):
        raise ApplicationInvalid(
            f"expected the key of {what} to be a path like data.customer, or {', '.join(_ATTRIBUTES_AS_KEY)}, "
            f"or a function of the event, got: {key!r}"
        )


def _follow(path: str, event: Event[Any]) -> Any:
    attribute, *members = path.split(".")
    found = getattr(event, attribute)
    for member in members:
        found = found.get(member) if isinstance(found, dict) else None
    return found
