"""Tells workers that something is asked of them."""

from __future__ import annotations

from tenantry.subscriptions.roll import hint_subject
from tenantry.tenants.administration import Administration


async def nudge_workers(administration: Administration) -> None:
    """They look at the database now, and not within a second."""
    await administration.backbone.hint(hint_subject(administration.lanes.app))
