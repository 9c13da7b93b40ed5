"""The asset budget: how many replicated streams and consumers a cluster may hold before it grows slow."""

from __future__ import annotations

from tenantry.errors import BudgetExceeded
from tenantry.postgres.queries import Connection, SqlFolder

_sql = SqlFolder("tenantry.tenants")


class AssetBudget:
    """Without replicas, on a single server, nothing counts."""

    def __init__(self, most: int, replicas: int) -> None:
        self._most = most
        self._is_in_force = replicas > 1

    async def require_room(self, connection: Connection, tenant: str) -> None:
        """Call it once the change is written, and before it is committed."""
        if not self._is_in_force:
            return
        row = await _sql.fetch_one(connection, "replicated_assets")
        assets = row["assets"] if row else 0
        if assets > self._most:
            raise BudgetExceeded(
                f"with tenant {tenant} the cluster would hold {assets:,} replicated streams and consumers, and its "
                f"budget is {self._most:,}; put small tenants into the pooled tier (--tier pooled), keep consumers at "
                "one copy (consumer_replicas 1), or raise asset_budget if the cluster is up to it"
            )
