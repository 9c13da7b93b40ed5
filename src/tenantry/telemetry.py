"""What happens inside Tenantry, told to whoever subscribes.

Code declares a signal once, emits it, and knows nothing of logs, metrics or traces: those subscribe.

    STARTED = signal("embedded.server.started", "An embedded server answers.", "server", "port", "seconds")
    STARTED.emit(server="nats", port=4222, seconds=0.2)

    with RELAY_BATCH.span(tenant="acme") as span:   # emitted once at the end, with `seconds` and, if it failed, `error`
        span["events"] = 100

`docs/reference/telemetry.md` lists every signal; a test compares it with what the code declares.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

Fields = dict[str, Any]
Level = Literal["debug", "info", "warning", "error"]
Subscriber = Callable[["Signal", Fields], None]

_logger = logging.getLogger(__name__)
_signals: dict[str, Signal] = {}
_subscribers: list[tuple[str, Subscriber]] = []


@dataclass(frozen=True, slots=True, eq=False)
class Signal:
    """Something that happens, by name, with the fields that describe it."""

    name: str
    meaning: str
    fields: tuple[str, ...]
    level: Level

    def emit(self, **fields: Any) -> None:
        for prefix, subscriber in _subscribers:
            if self.name.startswith(prefix):
                try:
                    subscriber(self, fields)
                except Exception:
                    # Watching must never stop the work that is watched.
                    _logger.exception("a telemetry subscriber failed on %s", self.name)

    @contextmanager
    def span(self, **fields: Any) -> Iterator[Fields]:
        """Emit once, when the block ends, with its duration in `seconds` and the exception, if any, in `error`."""
        started = time.perf_counter()
        try:
            yield fields
        except Exception as error:
            fields["error"] = error
            raise
        finally:
            fields["seconds"] = time.perf_counter() - started
            self.emit(**fields)


def signal(name: str, meaning: str, *fields: str, level: Level = "info") -> Signal:
    """Declare a signal; each name is declared in one place. `level` is how loud a log should tell it."""
    if name in _signals:
        raise ValueError(f"expected the signal {name} to be declared once")
    declared = _signals[name] = Signal(name, meaning, fields, level)
    return declared


def signals() -> list[Signal]:
    """All that the imported code declares, by name."""
    return [_signals[name] for name in sorted(_signals)]


def subscribe(subscriber: Subscriber, prefix: str = "") -> Callable[[], None]:
    """Call `subscriber` for each signal whose name starts with `prefix`; the result ends the subscription."""
    entry = (prefix, subscriber)
    _subscribers.append(entry)
    return lambda: _subscribers.remove(entry)
