"""Lets the effects of an event happen once, in the transaction of whoever has them."""

from __future__ import annotations

from typing import Any

from tenantry.application import Context
from tenantry.outbox.emit_drivers import call


def remember(connection: Any, context: Context, event_id: str) -> Any:
    """Whether it is the first time; of an asynchronous connection, an awaitable of it."""
    said = {
        "service": context.service,
        "tenant": context.tenant,
        "channel": context.channel,
        "event_id": event_id,
        "part": str(context.part),
        "fence": str(context.fence),
    }
    return call(connection, "once", said)
