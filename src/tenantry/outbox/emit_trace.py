"""The trace that an event goes on with: OpenTelemetry's current span, where the application uses OpenTelemetry."""

from __future__ import annotations

import sys
from typing import NamedTuple


class Trace(NamedTuple):
    parent: str
    state: str | None


def current_trace() -> Trace | None:
    """Nothing is imported for it: who has a span has imported OpenTelemetry."""
    telemetry = sys.modules.get("opentelemetry.trace")
    if telemetry is None:
        return None
    context = telemetry.get_current_span().get_span_context()
    if not context.is_valid:
        return None
    parent = f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"
    return Trace(parent, context.trace_state.to_header() or None)
