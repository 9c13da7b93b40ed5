"""The services that a worker serves, as all others know them."""

from __future__ import annotations

from datetime import datetime

from tenantry.application import Subscriber
from tenantry.errors import SubscriptionConflict
from tenantry.postgres.pool import Pool
from tenantry.postgres.queries import SqlFolder
from tenantry.subscriptions.database import PATIENCE_SECONDS

_sql = SqlFolder("tenantry.subscriptions")


class Services:
    """The register of them, in PostgreSQL."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    async def register(self, app: str, subscriber: Subscriber) -> datetime:
        """Since when there is this service. SubscriptionConflict if another application has workers for it."""
        said = {
            "service": subscriber.name,
            "app": app,
            "channel": subscriber.channel,
            "types": list(subscriber.types),
            "order": subscriber.order,
            "after_last_retry": subscriber.after_last_retry,
            "parts": subscriber.parts,
        }
        async with self._pool.connection(PATIENCE_SECONDS) as connection:
            row = await _sql.fetch_one(connection, "register_service", said)
        assert row is not None
        if row["app"] != app:
            raise SubscriptionConflict(
                f"application {row['app']} has workers for a service {subscriber.name}, and so would {app}: they would "
                "take events from each other; name one of the subscribers otherwise"
            )
        since: datetime = row["created_at"]
        return since

    async def keep(self, app: str, services: list[str]) -> None:
        """There are workers for these."""
        async with self._pool.connection(PATIENCE_SECONDS) as connection:
            await _sql.execute(connection, "keep_services", {"app": app, "services": services})

    async def paused(self) -> set[tuple[str, str]]:
        """Service and tenant of those that are not to be handled now."""
        async with self._pool.connection(PATIENCE_SECONDS) as connection:
            rows = await _sql.fetch_all(connection, "paused")
        return {(row["service"], row["tenant_id"]) for row in rows}
