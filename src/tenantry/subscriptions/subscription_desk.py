"""The services that workers have served, looked at from outside, paused for a tenant, and forgotten."""

from __future__ import annotations

from collections import defaultdict
from datetime import datetime
from typing import Any

import msgspec

from tenantry.postgres.queries import SqlFolder
from tenantry.subscriptions.job_desk import unknown_service
from tenantry.subscriptions.lane_consumers import Lag, LaneConsumers, Served
from tenantry.subscriptions.nudging import nudge_workers
from tenantry.tenants.administration import Administration
from tenantry.tenants.tenant import Status, Tenant

_sql = SqlFolder("tenantry.subscriptions")


class Pause(msgspec.Struct, frozen=True, kw_only=True):
    tenant_id: str
    paused_by: str
    paused_at: datetime


class Subscription(msgspec.Struct, frozen=True, kw_only=True):
    service: str
    app: str
    channel: str
    types: list[str]
    handling_order: str
    after_last_retry: str
    parts: int
    created_at: datetime
    seen_at: datetime
    """When a worker declared it last."""
    dead_letters: int
    pauses: list[Pause]


class Forgotten(msgspec.Struct, frozen=True, kw_only=True):
    consumers: int
    pauses: int
    dead_letters: int


class SubscriptionDesk:
    def __init__(self, administration: Administration) -> None:
        self._administration = administration
        self._pool = administration.pool
        self._consumers = LaneConsumers(administration.backbone)

    async def all(self, owner: str | None = None, service: str | None = None) -> list[Subscription]:
        """With an owner, pauses and dead letters are those of this tenant alone."""
        asked = {"owner": owner, "service": service}
        async with self._pool.connection() as connection:
            rows = await _sql.fetch_all(connection, "list_subscriptions", asked)
            pauses: dict[str, list[Pause]] = defaultdict(list)
            for pause in await _sql.fetch_all(connection, "list_pauses", asked):
                pauses[pause.pop("service")].append(Pause(**pause))
        return [Subscription(**row, pauses=pauses[row["service"]]) for row in rows]

    async def get(self, service: str, owner: str | None = None) -> Subscription:
        found = await self.all(owner, service)
        if not found:
            raise unknown_service(service)
        return found[0]

    async def pause(self, service: str, tenant: str, actor: str) -> bool:
        """Whether it was not paused yet. What is being handled is finished."""
        await self.get(service)
        return await self._change("pause", service, tenant, actor)

    async def resume(self, service: str, tenant: str, actor: str) -> bool:
        """Whether it was paused."""
        await self.get(service)
        return await self._change("resume", service, tenant, actor)

    async def forget(self, service: str, actor: str) -> Forgotten:
        """Delete its consumers, pauses and dead letters; a worker that serves it again begins anew."""
        await self.get(service)
        lanes = [lane for tenant in await self._tenants(None) for lane in self._administration.lanes.lanes(tenant)]
        consumers = await self._consumers.delete(service, lanes)
        asked = {"service": service}
        async with self._pool.connection() as connection, connection.transaction():
            forgotten = Forgotten(
                consumers=consumers,
                dead_letters=await _sql.execute(connection, "forget_dead_letters", asked),
                pauses=await _sql.execute(connection, "forget_pauses", asked),
            )
            await _sql.execute(connection, "end_jobs_of_service", asked)
            await _sql.execute(connection, "forget_subscription", asked)
            about = {"name": service, **msgspec.to_builtins(forgotten)}
            await self._administration.audit.append(connection, actor, "subscription.forget", before=about)
        await nudge_workers(self._administration)
        return forgotten

    async def lag(self, service: str | None = None, tenant: str | None = None) -> list[Lag]:
        """Those with most before them first, after those of which nothing is known."""
        subscriptions = [await self.get(service)] if service else await self.all()
        served = [
            Served(each.service, each.parts, self._administration.lanes.lane(found, channel))
            for found in await self._tenants(tenant)
            for each in subscriptions
            if (channel := found.channel(each.channel))
        ]
        lags = await self._consumers.lag(served)
        return sorted(lags, key=_urgency)

    async def _tenants(self, tenant: str | None) -> list[Tenant]:
        registry = self._administration.registry
        found = [await registry.get(tenant)] if tenant else [each async for each in registry.all()]
        return [each for each in found if each.status != Status.DELETING]

    async def _change(self, act: str, service: str, tenant: str, actor: str) -> bool:
        async with self._administration.registry.change(tenant) as connection:
            await self._administration.registry.get(tenant, connection)
            asked = {"service": service, "tenant": tenant, "actor": actor}
            is_changed = bool(await _sql.execute(connection, act, asked))
            if is_changed:
                about = {"name": service}
                await self._administration.audit.append(connection, actor, f"subscription.{act}", tenant, after=about)
        await nudge_workers(self._administration)
        return is_changed


def _urgency(lag: Lag) -> tuple[Any, ...]:
    return not lag.problem, -(lag.pending or 0), lag.service, lag.tenant_id, lag.part
