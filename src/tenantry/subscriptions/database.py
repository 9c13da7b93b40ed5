"""What it means for workers that the database is away: they go on, and look again."""

from __future__ import annotations

from typing import Final

import psycopg
from psycopg_pool import PoolTimeout

from tenantry.telemetry import signal

AWAY = signal(
    "subscriptions.database_away",
    "What is paused, or to be handled again, cannot be read; all else goes on.",
    "error",
    level="warning",
)

DATABASE_AWAY: Final = (psycopg.OperationalError, psycopg.InterfaceError, PoolTimeout)
PATIENCE_SECONDS: Final = 5.0
"""Whoever waits for it holds up a tenant, or keeps a slot."""
