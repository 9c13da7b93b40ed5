"""The registry: tenants, their channels and plans, as rows in PostgreSQL. It says what is wanted."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final
from uuid import UUID

import msgspec
from psycopg.rows import DictRow
from psycopg.types.json import Jsonb

from tenantry.errors import TenantNotFound
from tenantry.postgres.pool import Pool
from tenantry.postgres.queries import Connection, SqlFolder
from tenantry.tenants.plans import SHIPPED, Limits, Plan, read_limits
from tenantry.tenants.tenant import Channel, Placement, Status, Tenant, Tier

PAGE: Final = 500

_sql = SqlFolder("tenantry.tenants")


class Registry:
    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    async def ship_plans(self) -> None:
        """The plans that everybody starts with, if there are none yet; one that was deleted stays so."""
        async with self._pool.connection() as connection:
            for plan in SHIPPED if not await self.plans(connection) else ():
                await _sql.execute(connection, "ship_plan", _plan_row(plan))

    @asynccontextmanager
    async def change(self, tenant: str) -> AsyncIterator[Connection]:
        """A transaction in which nobody else changes this tenant, whether it exists yet or not."""
        async with self._pool.connection() as connection, connection.transaction():
            await _sql.execute(connection, "lock_tenant", {"id": tenant})
            yield connection

    async def find(self, tenant: str, connection: Connection | None = None) -> Tenant | None:
        if connection is None:
            async with self._pool.connection() as own:
                return await self.find(tenant, own)
        row = await _sql.fetch_one(connection, "find_tenant", {"id": tenant})
        return _tenant(row) if row else None

    async def get(self, tenant: str, connection: Connection | None = None) -> Tenant:
        found = await self.find(tenant, connection)
        if found is None:
            raise TenantNotFound(f"there is no tenant {tenant!r}; `tenantry tenant list` shows those there are")
        return found

    async def find_many(self, tenants: Iterable[str]) -> list[Tenant]:
        async with self._pool.connection() as connection:
            return [_tenant(row) for row in await _sql.fetch_all(connection, "find_tenants", {"ids": list(tenants)})]

    async def versions(self) -> dict[str, str]:
        """All tenants, each with a word that is another one whenever the tenant or its plan has changed."""
        async with self._pool.connection() as connection:
            return {row["id"]: row["version"] for row in await _sql.fetch_all(connection, "tenant_versions")}

    async def page(
        self,
        *,
        after: str = "",
        limit: int = PAGE,
        status: Status | None = None,
        plan: str | None = None,
        tier: Tier | None = None,
    ) -> list[Tenant]:
        """Tenants by id, those after `after`."""
        async with self._pool.connection() as connection:
            rows = await _sql.fetch_all(
                connection,
                "page_tenants",
                {"after": after, "limit": limit, "status": status, "plan": plan, "tier": tier},
            )
        return [_tenant(row) for row in rows]

    async def all(self) -> AsyncIterator[Tenant]:
        after = ""
        while page := await self.page(after=after):
            for tenant in page:
                yield tenant
            after = page[-1].id

    async def unfinished(self, limit: int = PAGE) -> list[str]:
        """Tenants of whom the servers do not have yet what is wanted, and whose turn it is."""
        async with self._pool.connection() as connection:
            return [row["id"] for row in await _sql.fetch_all(connection, "unfinished_tenants", {"limit": limit})]

    async def insert(
        self, connection: Connection, id: str, name: str, plan: str, tier: Tier, overrides: Any, placement: Placement
    ) -> None:
        await _sql.execute(
            connection, "insert_tenant", _tenant_row(id, name, plan, overrides, placement) | {"tier": tier}
        )

    async def update(
        self, connection: Connection, id: str, name: str, plan: str, overrides: Any, placement: Placement
    ) -> None:
        await _sql.execute(connection, "update_tenant", _tenant_row(id, name, plan, overrides, placement))

    async def set_status(self, connection: Connection, tenant: str, status: Status) -> None:
        await _sql.execute(connection, "set_status", {"id": tenant, "status": status})

    async def set_tier(self, connection: Connection, tenant: str, tier: Tier) -> None:
        await _sql.execute(connection, "set_tier", {"id": tenant, "tier": tier})

    async def touch(self, connection: Connection, tenant: str) -> None:
        """Something that belongs to the tenant has changed, and the servers are to follow."""
        await _sql.execute(connection, "touch_tenant", {"id": tenant})

    async def put_channels(self, connection: Connection, tenant: str, channels: Sequence[Channel]) -> None:
        await _sql.execute(
            connection,
            "put_channels",
            {
                "id": tenant,
                "names": [each.name for each in channels],
                "retentions": [each.retention for each in channels],
                "pools": [each.pool for each in channels],
            },
        )

    async def remove_channels(self, connection: Connection, tenant: str, names: Iterable[str]) -> None:
        """Mark them: they are forgotten once the servers have forgotten them."""
        await _sql.execute(connection, "remove_channels", {"id": tenant, "names": list(names)})

    async def pool_with_room(self, connection: Connection, retention: int, most: int) -> int:
        """A shared stream of this retention that has room for one more lane; a new one if need be."""
        await _sql.execute(connection, "lock_pools")
        found = await _sql.fetch_one(connection, "pools_with_room", {"retention": retention, "most": most})
        if found is None:
            found = await _sql.fetch_one(connection, "add_pool", {"retention": retention})
        assert found is not None
        return int(found["number"])

    async def mark_provisioned(self, tenant: Tenant) -> Tenant:
        """The servers have what was wanted; the tenant as it is now, unless somebody wants more by then."""
        async with self._pool.connection() as connection:
            if removed := [each.name for each in tenant.channels if each.removing]:
                await _sql.execute(connection, "forget_channels", {"id": tenant.id, "names": removed})
            await _sql.execute(connection, "mark_provisioned", {"uid": tenant.uid, "revision": tenant.revision})
        left = tuple(each for each in tenant.channels if not each.removing)
        return msgspec.structs.replace(tenant, provisioned=tenant.revision, problem="", channels=left)

    async def mark_failed(self, tenant: UUID, problem: str) -> None:
        async with self._pool.connection() as connection:
            await _sql.execute(connection, "mark_failed", {"uid": tenant, "problem": problem})

    async def delete(self, connection: Connection, tenant: UUID) -> None:
        """Forget a tenant and, as everything of a tenant refers to it, all its rows."""
        await _sql.execute(connection, "delete_tenant", {"uid": tenant})

    async def plans(self, connection: Connection | None = None) -> list[tuple[Plan, int]]:
        """The plans, and how many tenants each has."""
        if connection is None:
            async with self._pool.connection() as own:
                return await self.plans(own)
        return [(_plan(row), row["tenants"]) for row in await _sql.fetch_all(connection, "plans")]

    async def plan(self, connection: Connection, name: str) -> Plan:
        """The plan, which stays as it is until the transaction ends."""
        row = await _sql.fetch_one(connection, "find_plan", {"name": name})
        if row is None:
            raise TenantNotFound(f"there is no plan {name!r}; `tenantry plan list` shows those there are")
        return _plan(row)

    async def put_plan(self, connection: Connection, plan: Plan) -> None:
        """Write a plan; the servers are to follow for all its tenants."""
        await _sql.execute(connection, "put_plan", _plan_row(plan))
        await _sql.execute(connection, "touch_tenants_of_plan", {"plan": plan.name})

    async def delete_plan(self, connection: Connection, name: str) -> None:
        await _sql.execute(connection, "delete_plan", {"name": name})


def _tenant(row: DictRow) -> Tenant:
    limits = msgspec.convert(row["plan_limits"], Limits)
    own = {name: row[name] for name in Tenant.__struct_fields__ if name in row}
    return Tenant(
        **own
        | {
            "tier": Tier(row["tier"]),
            "status": Status(row["status"]),
            "placement": msgspec.convert(row["placement"], Placement),
            "channels": tuple(msgspec.convert(row["channels"], list[Channel])),
            "limits": read_limits(row["overrides"], limits) if row["overrides"] else limits,
        }
    )


def _tenant_row(id: str, name: str, plan: str, overrides: Any, placement: Placement) -> dict[str, Any]:
    return {
        "id": id,
        "name": name,
        "plan": plan,
        "overrides": Jsonb(overrides),
        "placement": Jsonb(msgspec.to_builtins(placement)),
    }


def _plan(row: DictRow) -> Plan:
    return Plan(row["name"], msgspec.convert(row["limits"], Limits))


def _plan_row(plan: Plan) -> dict[str, Any]:
    return {"name": plan.name, "limits": Jsonb(msgspec.to_builtins(plan.limits))}
