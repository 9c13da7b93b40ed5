"""W3C trace context: an event goes on with the trace it names, else with its request's, else with a new one.

https://www.w3.org/TR/trace-context/
"""

from __future__ import annotations

import random
import re
from collections.abc import Mapping
from typing import Final, NamedTuple

from tenantry.errors import EventInvalid
from tenantry.event import Extension

PARENT: Final = "traceparent"
STATE: Final = "tracestate"

_PARENT = re.compile(r"00-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")
_STATE = re.compile(r"[\x20-\x7e]{1,512}")


class Trace(NamedTuple):
    parent: str
    state: str = ""


def start_trace() -> Trace:
    digits = f"{random.getrandbits(192):048x}"
    return Trace(f"00-{digits[:32]}-{digits[32:]}-01")


def trace_of_request(parent: str, state: str) -> Trace | None:
    """What the headers of a request say; what they say wrongly is left aside, as the standard wants it."""
    if not _PARENT.fullmatch(parent):
        return None
    return Trace(parent, state if _STATE.fullmatch(state) else "")


def trace_of_event(extensions: Mapping[str, Extension]) -> Trace | None:
    """What an event says itself."""
    if PARENT not in extensions:
        return None
    parent, state = extensions[PARENT], extensions.get(STATE, "")
    if not isinstance(parent, str) or not _PARENT.fullmatch(parent):
        raise EventInvalid(PARENT, f"expected {PARENT} to be a W3C trace context, got: {str(parent)[:80]!r}")
    if state != "" and not (isinstance(state, str) and _STATE.fullmatch(state)):
        raise EventInvalid(STATE, f"expected {STATE} to be 1 to 512 visible characters")
    return Trace(parent, str(state))
