"""The roster: all tenants, in memory, for those who ask about one with every event.

It follows the registry within a second, and keeps what it has while the database is away.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Final, NamedTuple

import psycopg
from psycopg_pool import PoolTimeout

from tenantry.nats.connections import Broker
from tenantry.telemetry import signal
from tenantry.tenants.lanes import Lane, Lanes
from tenantry.tenants.registry import Registry
from tenantry.tenants.tenant import Tenant

STALE = signal("tenants.roster_stale", "The registry of tenants could not be read.", "error", level="warning")

REFRESH_SECONDS: Final = 0.5


class Account(NamedTuple):
    broker: Broker
    account: str


class Roster:
    """A service. `find` and `lane` may be called from any thread."""

    name = "roster"

    def __init__(self, registry: Registry, lanes: Lanes) -> None:
        self._registry = registry
        self._lanes = lanes
        self._versions: dict[str, str] = {}
        self._tenants: dict[str, Tenant] = {}
        self._resolved: dict[tuple[str, str], Lane] = {}
        self._refreshing = asyncio.Lock()
        self.changes = 0
        """How often something was different from before."""

    def __iter__(self) -> Iterator[Tenant]:
        return iter(list(self._tenants.values()))

    @property
    def platform(self) -> Account:
        """Where lanes are that have no account to themselves."""
        return Account(self._lanes.platform, self._lanes.platform_account)

    def find(self, tenant: str) -> Tenant | None:
        return self._tenants.get(tenant)

    def lane(self, tenant: str, channel: str) -> Lane | None:
        """Where a tenant's channel lives, as far as is known; whether it may be used, its status says."""
        key = (tenant, channel)
        lane = self._resolved.get(key)
        if lane is None and (found := self.find(tenant)) and (named := found.channel(channel)):
            lane = self._resolved[key] = self._lanes.lane(found, named)
        return lane

    async def refresh(self) -> None:
        """Read what has changed."""
        async with self._refreshing:
            versions = await self._registry.versions()
            changed = [id for id, version in versions.items() if self._versions.get(id) != version]
            gone = self._versions.keys() - versions.keys()
            found = {tenant.id: tenant for tenant in await self._registry.find_many(changed)} if changed else {}
            self._tenants = {id: each for id, each in self._tenants.items() if id not in gone} | found
            self._versions = versions
            for key in [key for key in self._resolved if key[0] in gone or key[0] in found]:
                del self._resolved[key]
            self.changes += bool(changed or gone)

    async def start(self) -> None:
        await self.refresh()

    async def run(self) -> None:
        while True:
            await asyncio.sleep(REFRESH_SECONDS)
            try:
                await self.refresh()
            except (psycopg.Error, PoolTimeout) as problem:
                STALE.emit(error=problem)

    async def stop(self) -> None:
        pass

    def kill(self) -> None:
        pass
