"""What an application makes of its events on Spark: pipelines that fill tables, projections that keep documents."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from tenantry.application.event import Event, Key, key_of

WAREHOUSE: Final = "warehouse"
"""What writes the events of every channel into a table of its own."""
TABLES_OF_CHANNELS: Final = ("events", "properties")


@dataclass(frozen=True, slots=True)
class Pipeline:
    """A table for each tenant, made of its events."""

    name: str
    table: str
    types: tuple[str, ...]
    channel: str
    stateful: bool
    """Whether a row depends on more than one event, so that its query keeps state."""
    function: Callable[[Any], Any]
    """From a DataFrame of events to a DataFrame of rows."""


@dataclass(frozen=True, slots=True)
class Projection:
    """Documents for each tenant, each of them brought up to date by the events that have its key."""

    name: str
    types: tuple[str, ...]
    key: Key
    initial: Any
    channel: str
    evolve: Callable[[Any, Event[Any]], Any]

    def key_of(self, event: Event[Any]) -> str | None:
        """The document that the event is for; None: it is for no document."""
        return key_of(self.key, event, f"projection {self.name}")

    def start(self) -> Any:
        """The state of a document before its first event; nobody else has it."""
        return self.initial() if callable(self.initial) else copy.deepcopy(self.initial)
