"""Logs: one line for each signal, for people on a terminal and as JSON elsewhere."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from typing import Any

import structlog

from tenantry.config import Settings
from tenantry.telemetry import Fields, Signal, subscribe

LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}


def log_signals(settings: Settings) -> Callable[[], None]:
    """Write signals to standard error from now on; the result ends it."""
    as_json = settings.log_format == "json" or (settings.log_format == "auto" and not sys.stderr.isatty())
    renderer: Any = structlog.processors.JSONRenderer() if as_json else structlog.dev.ConsoleRenderer(pad_event_to=28)
    logger = structlog.wrap_logger(
        structlog.PrintLogger(_CurrentStandardError()),  # type: ignore[arg-type]
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso" if as_json else "%H:%M:%S", utc=as_json),
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(LEVELS[settings.log_level]),
    )

    least = LEVELS[settings.log_level]

    def write(signal: Signal, fields: Fields) -> None:
        level = LEVELS["error" if fields.get("error") else signal.level]
        # Some signals are told with every event, and most of those nobody wants to read.
        if level >= least:
            logger.log(level, signal.name, **{name: _shown(value) for name, value in fields.items()})

    return subscribe(write)


class _CurrentStandardError:
    """Whatever standard error is at the moment of writing: a live display puts itself in its place."""

    def write(self, text: str) -> int:
        return sys.stderr.write(text)

    def flush(self) -> None:
        sys.stderr.flush()


def _shown(value: Any) -> Any:
    if isinstance(value, BaseException):
        return f"{type(value).__name__}: {value}"
    return round(value, 4) if isinstance(value, float) else value
