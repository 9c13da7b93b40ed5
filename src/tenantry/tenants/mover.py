"""Moves a tenant to a tier above, while its producers go on publishing.

The new stream copies the old one as its mirror, which keeps every sequence and time. At the cut the old one takes
nothing more, the copy catches up, learns which event ids it must not take twice, and becomes the lane. A producer sees
its publishes unanswered for that moment and repeats them; what is repeated is stored once.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Final

from tenantry.errors import BrokerError, ProvisioningFailed, TenantConflict
from tenantry.postgres.locks import Lease, Locks
from tenantry.telemetry import signal
from tenantry.tenants.audit import AuditLog
from tenantry.tenants.backbone import Backbone
from tenantry.tenants.crossing import Crossing
from tenantry.tenants.lanes import Lanes, at_tier
from tenantry.tenants.moves import LaneMove, Move, MoveStore, Stage
from tenantry.tenants.pools import Pools
from tenantry.tenants.provisioner import RECONCILER, STEP, Provisioner
from tenantry.tenants.registry import Registry
from tenantry.tenants.tenant import Tenant, Tier

MOVED = signal("tenants.moved", "A tenant was moved to another tier.", "tenant", "tier", "stage", "seconds", "error")

POLL_SECONDS: Final = 0.02
LOOKS_BETWEEN: Final = 25
"""So often is looked how far a copy is before it is looked whether somebody gave the move up."""
CUT_LAG: Final = 1000
"""So many sequences may the copy still lack when the old stream is closed."""

Progress = Callable[[str, int, int], None]
"""Told a channel, how far its copy is, and how far it has to go."""


class Mover:
    def __init__(
        self,
        registry: Registry,
        locks: Locks,
        moves: MoveStore,
        audit: AuditLog,
        lanes: Lanes,
        pools: Pools,
        backbone: Backbone,
        provisioner: Provisioner,
    ) -> None:
        self._registry = registry
        self._locks = locks
        self._moves = moves
        self._audit = audit
        self._lanes = lanes
        self._pools = pools
        self._backbone = backbone
        self._provisioner = provisioner

    def plan(self, tenant: Tenant, to: Tier) -> list[LaneMove]:
        """What would become of each channel."""
        moved = at_tier(tenant, to)
        return [
            LaneMove(
                channel=channel.name,
                from_stream=self._lanes.lane(tenant, channel).stream,
                to_stream=self._lanes.lane(moved, channel).stream,
                pool=channel.pool,
            )
            for channel in tenant.channels
            if not channel.removing
        ]

    async def carry_on(self, tenant: str, progress: Progress = lambda *_: None) -> None:
        """Do all that is left of a tenant's move, or of giving it up, from wherever it was left.

        ProvisioningFailed if the servers would not; it is then on record with the reason, and is tried again.
        """
        async with self._locks.hold(f"move/{tenant}") as lease:
            move = await self._moves.unfinished(tenant)
            if move is None:
                return
            try:
                with MOVED.span(tenant=tenant, tier=str(move.to_tier)) as span:
                    while move is not None:
                        span["stage"] = str(move.stage)
                        await self._do(move, lease, progress)
                        move = await self._moves.unfinished(tenant)
            except (BrokerError, TenantConflict) as problem:
                assert move is not None
                await self._moves.mark_failed(move, str(problem))
                raise ProvisioningFailed(
                    f"the move of tenant {tenant} is on record and is tried again by itself while `tenantry up` or "
                    f"`tenantry serve api` runs: {problem}"
                ) from problem
        await self._provisioner.converge(tenant)

    async def _do(self, move: Move, lease: Lease, progress: Progress) -> None:
        """One stage; whoever looks next at the move finds the next one."""
        match move.stage:
            case Stage.COPYING:
                if await self._copy(move, progress):
                    await self._moves.advance(move, Stage.CUTTING)
            case Stage.CUTTING:
                await self._cut(move, lease)
                await self._switch(move)
            case Stage.SWITCHED:
                await self._erase_old(move)
                await self._moves.advance(move, Stage.DONE)
            case Stage.ABANDONING:
                async with self._crossings(move) as (tenant, crossings):
                    for crossing in crossings:
                        self._step(tenant, f"abandon {crossing.record.channel}")
                        await crossing.discard_copy()
                await self._moves.advance(move, Stage.ABANDONED)
                await self._provisioner.converge(move.tenant_id, again=True)

    @asynccontextmanager
    async def _crossings(self, move: Move) -> AsyncIterator[tuple[Tenant, list[Crossing]]]:
        tenant = await self._registry.get(move.tenant_id)
        before, after = at_tier(tenant, move.from_tier), at_tier(tenant, move.to_tier)
        channels = {record.channel: tenant.channel(record.channel) for record in move.lanes}
        home = self._lanes.lanes(after)[0].broker
        async with self._backbone.jetstream(home) as there:
            yield (
                tenant,
                [
                    Crossing(
                        record,
                        self._lanes.lane(before, channel.in_pool(record.pool)),
                        self._lanes.lane(after, channel),
                        self._lanes.stream_config(after, channel),
                        self._backbone.platform,
                        there,
                    )
                    for record in move.lanes
                    if (channel := channels[record.channel]) is not None
                ],
            )

    async def _copy(self, move: Move, progress: Progress) -> bool:
        """Whether all copies have all but caught up; not if somebody gave the move up meanwhile."""
        # Now that the move is on record, the account's claims come with leave to copy.
        await self._provisioner.converge(move.tenant_id, again=True)
        async with self._crossings(move) as (tenant, crossings):
            for crossing in crossings:
                self._step(tenant, f"copy {crossing.record.channel}")
                await crossing.start_copy(self._lanes.copy_token(move.id))
            for crossing in crossings:
                if not await self._until_copied(move, crossing, CUT_LAG, progress):
                    return False
        return True

    async def _until_copied(self, move: Move, crossing: Crossing, lag: int, progress: Progress) -> bool:
        """Wait until the copy lacks no more than `lag` sequences, or somebody gave the move up."""
        while True:
            for _ in range(LOOKS_BETWEEN):
                copied, newest = await crossing.progress()
                progress(crossing.record.channel, min(copied, newest), newest)
                if copied >= newest - lag:
                    return True
                await asyncio.sleep(POLL_SECONDS)
            current = await self._moves.unfinished(move.tenant_id)
            if current is None or current.stage != move.stage:
                return False

    async def _cut(self, move: Move, lease: Lease) -> None:
        async with self._crossings(move) as (tenant, crossings):
            for crossing in crossings:
                self._step(tenant, f"close {crossing.record.channel}")
                lease.require()
                if crossing.record.pool is not None:
                    await self._pools.settle(crossing.record.pool)
                await crossing.close()
            for crossing in crossings:
                # Once it is on record where it goes on, it has been taken over, and producers may be at it.
                if not crossing.record.resumes_at:
                    self._step(tenant, f"take over {crossing.record.channel}")
                    await self._until_copied(move, crossing, 0, lambda *_: None)
                    lease.require()
                    await crossing.take_over()
            self._step(tenant, "record")
            await self._moves.advance(move, Stage.CUTTING)
            await self._push_final_claims(tenant, crossings)
            for crossing in crossings:
                self._step(tenant, f"open {crossing.record.channel}")
                lease.require()
                await crossing.open()
                self._step(tenant, f"consumers {crossing.record.channel}")
                await crossing.copy_consumers()

    async def _push_final_claims(self, tenant: Tenant, crossings: Sequence[Crossing]) -> None:
        if not self._backbone.has_accounts:
            return
        async with self._locks.hold(f"tenant/{tenant.id}"):
            self._step(tenant, "account")
            tenant = await self._registry.get(tenant.id)
            targets = [crossing.target for crossing in crossings]
            # Consumers that the account's limits would not allow today are moved as well; the limits come afterwards.
            crosses = crossings[0].origin.account != crossings[0].target.account
            await self._provisioner.push_claims(tenant, targets, unbounded=crosses)

    async def _switch(self, move: Move) -> None:
        # Whoever provisions the tenant sees it at one tier, with its move, or at the other.
        async with (
            self._locks.hold(f"tenant/{move.tenant_id}"),
            self._registry.change(move.tenant_id) as connection,
        ):
            await self._moves.advance(move, Stage.SWITCHED, connection)
            await self._registry.set_tier(connection, move.tenant_id, move.to_tier)
            await self._audit.append(
                connection,
                RECONCILER,
                "tenant.moved",
                move.tenant_id,
                before={"tier": move.from_tier},
                after={"tier": move.to_tier, "lanes": move.describe()["lanes"]},
            )

    async def _erase_old(self, move: Move) -> None:
        async with self._crossings(move) as (tenant, crossings):
            for crossing in crossings:
                self._step(tenant, f"erase {crossing.record.channel}")
                await self._provisioner.erase_lane(self._backbone.platform, crossing.origin)

    def _step(self, tenant: Tenant, step: str) -> None:
        STEP.emit(tenant=tenant.id, step=step)
