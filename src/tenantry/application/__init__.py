"""What an application declares: `app = Tenantry("shop")`, and what it makes of its events."""

from tenantry.application.app import Tenantry
from tenantry.application.checks import NAME_PATTERN, TABLE_PATTERN
from tenantry.application.context import Context
from tenantry.application.event import LONGEST_KEY, Event, Key, key_of
from tenantry.application.loading import load_application
from tenantry.application.pipeline import TABLES_OF_CHANNELS, WAREHOUSE, Pipeline, Projection
from tenantry.application.subscriber import Backoff, Subscriber

__all__ = [
    "LONGEST_KEY",
    "NAME_PATTERN",
    "TABLES_OF_CHANNELS",
    "TABLE_PATTERN",
    "WAREHOUSE",
    "Backoff",
    "Context",
    "Event",
    "Key",
    "Pipeline",
    "Projection",
    "Subscriber",
    "Tenantry",
    "key_of",
    "load_application",
]
