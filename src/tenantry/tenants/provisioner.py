"""Brings the servers to what the registry wants of a tenant, in steps that may each be repeated.

A crash anywhere leaves a tenant whose revision is ahead of what was provisioned; doing all steps again completes it.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from typing import Any, Final

from tenantry.errors import BrokerError, ProvisioningFailed, TenantConflict
from tenantry.nats import claims
from tenantry.nats.jetstream import Config, JetStream
from tenantry.postgres.locks import Locks
from tenantry.postgres.pool import Pool
from tenantry.telemetry import signal
from tenantry.tenants.audit import AuditLog
from tenantry.tenants.backbone import Backbone
from tenantry.tenants.credentials import Credential, CredentialStore
from tenantry.tenants.door import Door
from tenantry.tenants.lanes import Lane, Lanes, at_tier
from tenantry.tenants.moves import Move, MoveStore, Stage
from tenantry.tenants.pools import Pools
from tenantry.tenants.registry import Registry
from tenantry.tenants.streams import ensure_stream, marks
from tenantry.tenants.tenant import Channel, Status, Tenant

STEP = signal(
    "tenants.step", "A step for a tenant is about to be done on the servers.", "tenant", "step", level="debug"
)
PROVISIONED = signal(
    "tenants.provisioned", "The servers were brought to what is wanted.", "tenant", "seconds", "error", level="debug"
)
ERASED = signal("tenants.erased", "All that a tenant had was erased.", "tenant", "seconds", "error")

RECONCILER: Final = "reconciler"
CONSUMER_LIMITS: Final = ("max_ack_pending", "num_replicas")
GRANT_MARK: Final = "tenantry.granted"
"""On a consumer that is there for tenants' users, and goes with the last credential for it."""


class Provisioner:
    def __init__(
        self,
        pool: Pool,
        registry: Registry,
        locks: Locks,
        credentials: CredentialStore,
        moves: MoveStore,
        audit: AuditLog,
        lanes: Lanes,
        pools: Pools,
        backbone: Backbone,
        *,
        parallel: int,
    ) -> None:
        self._pool = pool
        self._registry = registry
        self._locks = locks
        self._credentials = credentials
        self._moves = moves
        self._audit = audit
        self._lanes = lanes
        self._pools = pools
        self._backbone = backbone
        self._door = Door(lanes)
        self._room = asyncio.Semaphore(parallel)

    async def converge(self, tenant: str, *, again: bool = False) -> Tenant | None:
        """Do all that is still to be done for a tenant; ProvisioningFailed if the servers would not.

        `again` does it even where it was done: what is on the servers may have drifted. Returns the tenant, if there is
        one by then.
        """
        async with self._locks.hold(f"tenant/{tenant}"), self._room:
            async with self._pool.connection() as connection:
                found = await self._registry.find(tenant, connection)
                if found is None or (found.is_ready and not again):
                    return found
                move = await self._moves.unfinished(tenant, connection)
                credentials = await self._credentials.of(tenant, connection)
            try:
                if found.status == Status.DELETING:
                    await self._erase(found)
                    return None
                await self._provision(found, move, credentials)
                return await self._registry.mark_provisioned(found)
            except (BrokerError, TenantConflict) as problem:
                # A tenant that was complete before stays so on record: drift tells of the rest.
                if not found.is_ready:
                    await self._registry.mark_failed(found.uid, str(problem))
                raise ProvisioningFailed(
                    f"tenant {tenant} is recorded, and the servers do not have it all yet: {problem}. It is tried "
                    "again by itself while `tenantry up` or `tenantry serve api` runs"
                ) from problem

    async def claims(
        self,
        tenant: Tenant,
        lanes: Sequence[Lane],
        *,
        credentials: Sequence[Credential] | None = None,
        move: Move | None = None,
        unbounded: bool = False,
    ) -> str:
        """What the server is to know about the tenant's account: `lanes` are where it publishes now.

        `move` is one that is under way and copies; `unbounded` is for while its streams are worked on.
        """
        if credentials is None:
            credentials = await self._credentials.of(tenant.id)
        imports = self._door.imports(lanes, credentials)
        if move is not None and (copied := self._copied(tenant, move)):
            imports += self._door.copy_imports(copied, self._lanes.copy_token(move.id))
            unbounded = True
        return claims.account_claims(
            self._backbone.operator,
            self._lanes.account_key(tenant).public,
            f"{self._lanes.app}/{tenant.id}",
            limits=self._door.limits(tenant, lanes, unbounded=unbounded),
            imports=imports,
            revoked_users=self._door.revoked(tenant, credentials),
        )

    async def push_claims(
        self,
        tenant: Tenant,
        lanes: Sequence[Lane],
        *,
        credentials: Sequence[Credential] | None = None,
        move: Move | None = None,
        unbounded: bool = False,
    ) -> None:
        token = await self.claims(tenant, lanes, credentials=credentials, move=move, unbounded=unbounded)
        await self._backbone.accounts.push(token)

    async def _provision(self, tenant: Tenant, move: Move | None, credentials: Sequence[Credential]) -> None:
        with PROVISIONED.span(tenant=tenant.id):
            channels = [channel for channel in tenant.channels if not channel.removing]
            lanes = self._lanes.lanes(tenant)
            if move is not None and move.stage not in (Stage.COPYING, Stage.CUTTING):
                move = None
            # Streams that are to shrink must have done so before the account's limits do.
            has_more_to_come = self._backbone.has_accounts and tenant.provisioned > 0 and self._door.is_inside(lanes[0])
            if self._backbone.has_accounts:
                self._step(tenant, "account")
                await self.push_claims(tenant, lanes, credentials=credentials, move=move, unbounded=has_more_to_come)
            if move is not None:
                # The streams are the mover's until it is done.
                return
            for pool in {channel.pool for channel in tenant.channels if channel.pool is not None}:
                self._step(tenant, f"pool {pool}")
                await self._pools.settle(pool)
            async with self._backbone.jetstream(lanes[0].broker) as jetstream:
                await self._provision_streams(jetstream, tenant, channels, credentials)
                for channel in tenant.channels:
                    if channel.removing:
                        self._step(tenant, f"remove {channel.name}")
                        await self.erase_lane(jetstream, self._lanes.lane(tenant, channel))
            if has_more_to_come:
                self._step(tenant, "limits")
                await self.push_claims(tenant, lanes, credentials=credentials)
            self._step(tenant, "record")

    def _copied(self, tenant: Tenant, move: Move) -> list[Lane]:
        """The lanes that streams in the tenant's account copy from."""
        here, there = self._lanes.lanes(tenant), self._lanes.lanes(at_tier(tenant, move.to_tier))
        return [lane for lane, next_lane in zip(here, there, strict=True) if lane.account != next_lane.account]

    async def _provision_streams(
        self,
        jetstream: JetStream,
        tenant: Tenant,
        channels: Sequence[Channel],
        credentials: Sequence[Credential],
    ) -> None:
        for channel in channels:
            lane = self._lanes.lane(tenant, channel)
            if not lane.is_shared:
                self._step(tenant, f"stream {channel.name}")
                await ensure_stream(jetstream, self._lanes.stream_config(tenant, channel))
        for channel in channels:
            await self._provision_consumers(jetstream, tenant, self._lanes.lane(tenant, channel), credentials)

    async def _provision_consumers(
        self, jetstream: JetStream, tenant: Tenant, lane: Lane, credentials: Sequence[Credential]
    ) -> None:
        """Those that valid credentials may fetch from are there, and those of revoked ones alone are gone."""
        granted = {each.consumer for each in credentials if each.grants_consumer_of(lane.channel)}
        for service in sorted(
            {each.consumer for each in credentials if each.consumer and each.channel == lane.channel}
        ):
            self._step(tenant, f"consumer {service}")
            name = lane.consumer_name(service)
            found = await jetstream.consumer(lane.stream, name)
            is_ours = found is None or GRANT_MARK in (found["config"].get("metadata") or {})
            if service in granted and is_ours:
                await self._ensure_consumer(jetstream, tenant, lane, name, found)
            elif found is not None and is_ours:
                await jetstream.delete_consumer(lane.stream, name)

    async def _ensure_consumer(
        self, jetstream: JetStream, tenant: Tenant, lane: Lane, name: str, found: Config | None
    ) -> None:
        replicas = min(tenant.limits.consumer_replicas, self._lanes.replicas(tenant))
        wanted = consumer_config(tenant, lane, name, replicas)
        if found is None:
            await jetstream.create_consumer(lane.stream, wanted)
        elif any(found["config"].get(limit) != wanted[limit] for limit in CONSUMER_LIMITS):
            limits = {limit: wanted[limit] for limit in CONSUMER_LIMITS}
            await jetstream.create_consumer(lane.stream, found["config"] | limits)

    async def _erase(self, tenant: Tenant) -> None:
        with ERASED.span(tenant=tenant.id):
            lanes = [self._lanes.lane(tenant, channel) for channel in tenant.channels]
            erased: Counter[str] = Counter()
            if self._backbone.has_accounts:
                # Even if the server has forgotten the account: its streams would come back with it.
                self._step(tenant, "lock out")
                await self.push_claims(tenant, lanes, unbounded=self._door.is_inside(lanes[0]))
            for pool in {channel.pool for channel in tenant.channels if channel.pool is not None}:
                self._step(tenant, f"pool {pool}")
                await self._pools.settle(pool)
            async with self._backbone.jetstream(lanes[0].broker) as jetstream:
                for lane in lanes:
                    self._step(tenant, f"erase {lane.channel}")
                    erased += await self.erase_lane(jetstream, lane)
            if self._backbone.has_accounts:
                self._step(tenant, "delete account")
                await self._backbone.accounts.delete([self._lanes.account_key(tenant).public])
                erased["accounts"] += 1
            self._step(tenant, "forget")
            await self._forget(tenant, erased)

    async def erase_lane(self, jetstream: JetStream, lane: Lane) -> Counter[str]:
        """Erase what a lane holds, and its consumers; what was there, in numbers."""
        found = await jetstream.stream(lane.stream)
        if found is None:
            return Counter()
        if lane.is_shared:
            purged = await jetstream.purge(lane.stream, lane.subjects)
            prefix = lane.consumer_name("")
            own = [each["name"] async for each in jetstream.consumers(lane.stream) if each["name"].startswith(prefix)]
            for consumer in own:
                await jetstream.delete_consumer(lane.stream, consumer)
            return Counter(events=purged, consumers=len(own))
        if not marks(found["config"]):
            raise TenantConflict(f"stream {lane.stream} is not Tenantry's; it is not deleted")
        await jetstream.delete_stream(lane.stream)
        state = found["state"]
        return Counter(streams=1, events=state["messages"], consumers=state["consumer_count"])

    async def _forget(self, tenant: Tenant, erased: Counter[str]) -> None:
        async with self._registry.change(tenant.id) as connection:
            await self._registry.delete(connection, tenant.uid)
            await self._audit.append(
                connection, RECONCILER, "tenant.erased", tenant.id, before=tenant.describe(), after=dict(erased)
            )

    def _step(self, tenant: Tenant, step: str) -> None:
        STEP.emit(tenant=tenant.id, step=step)


def consumer_config(tenant: Tenant, lane: Lane, name: str, replicas: int) -> Config:
    """A durable consumer that a tenant's user fetches from."""
    config: dict[str, Any] = {
        "durable_name": name,
        "ack_policy": "explicit",
        "deliver_policy": "all",
        "max_ack_pending": tenant.limits.in_flight,
        "num_replicas": replicas,
        "metadata": {GRANT_MARK: lane.tenant},
    }
    if lane.is_shared:
        config["filter_subject"] = lane.subjects
    return config
