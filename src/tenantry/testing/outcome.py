"""What came of an event that was delivered to subscribers in a test."""

from __future__ import annotations

from typing import NoReturn

import msgspec

from tenantry.subscriptions.dead_letters import State


class Letter(msgspec.Struct, frozen=True, kw_only=True):
    """A dead letter of a rehearsal."""

    tenant: str
    service: str
    channel: str
    sequence: int
    payload: bytes
    """The event as it came."""
    reason: str
    traceback: str
    attempts: int
    state: State
    """`dead`, or what it holds back: `parked` those of its key, `stopped` everything; `held` waits for such a one."""
    event_id: str | None = None
    type: str | None = None
    key: str | None = None


class Outcome(msgspec.Struct, kw_only=True):
    """What one subscriber made of an event; it is kept up to date, for a redrive may come later."""

    service: str
    handled: bool = False
    attempts: int = 0
    """How often the handler was tried."""
    error: Exception | None = None
    """What the handler raised, the last time that it was tried."""
    pauses: list[float] = []
    """How many seconds a worker would have waited before each retry."""
    dead_letter: Letter | None = None
    waits: bool = False
    """Whether it is held back: by an event before it, with `after_last_retry="stop"`."""


class Outcomes(dict[str, Outcome]):
    """By the names of the subscribers that the event is for."""

    def __init__(self, event: str) -> None:
        self._event = event

    def __missing__(self, service: str) -> NoReturn:
        others = f"it is for {', '.join(self)}" if self else "it is for nobody"
        raise KeyError(f"{self._event} is not for a subscriber {service}; {others}")
