"""The asset budget: how many replicated streams and consumers a cluster may hold before it grows slow."""

from __future__ import annotations

from tenantry.errors import BudgetExceeded
from tenantry.postgres.queries import Connection, SqlFolder
from tenantry.tenants.tenant import Tenant

_sql = SqlFolder("tenantry.tenants")


class AssetBudget:
    """Without replicas, on a single server, nothing counts."""

    def __init__(self, most: int, replicas: int) -> None:
        self._most = most
        self._is_in_force = replicas > 1

    async def count(self, connection: Connection) -> int:
        """What the registry's tenants may take."""
        if not self._is_in_force:
            return 0
        row = await _sql.fetch_one(connection, "replicated_assets")
        return int(row["assets"]) if row else 0

    async def require_room(self, connection: Connection, whom: str, before: int) -> None:
        """Call it once the change is written, and before it is committed; what does not add anything is let be."""
        self._require(whom, before, await self.count(connection))

    async def require_room_for_move(self, connection: Connection, tenant: Tenant, replicas: int) -> None:
        """A tenant that gets streams of its own needs room for them."""
        before = await self.count(connection)
        gained = [each for each in tenant.channels if each.pool is not None] if replicas > 1 else []
        self._require(f"tenant {tenant.id} at that tier", before, before + len(gained))

    def _require(self, whom: str, before: int, after: int) -> None:
        if self._is_in_force and before < after > self._most:
            raise BudgetExceeded(
                f"with {whom} the cluster would hold {after:,} replicated streams and consumers, and its budget is "
                f"{self._most:,}; put small tenants into the pooled tier (--tier pooled), keep consumers at one copy "
                "(consumer_replicas 1), or raise asset_budget if the cluster is up to it"
            )
