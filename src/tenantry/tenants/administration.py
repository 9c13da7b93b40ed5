"""All that can be done with tenants, each act checked, recorded with its actor, and then carried out on the servers.

The command line, the HTTP API, the webhook and the demo all come through here.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final

import msgspec
from psycopg import errors as database_errors

from tenantry.errors import ProvisioningFailed, TenantConflict, TenantInvalid, TenantNotFound
from tenantry.postgres.pool import Pool
from tenantry.postgres.queries import Connection
from tenantry.tenants.api_keys import ApiKeys
from tenantry.tenants.audit import AuditLog
from tenantry.tenants.backbone import Backbone
from tenantry.tenants.budget import AssetBudget
from tenantry.tenants.credential_desk import CredentialDesk
from tenantry.tenants.drift import DriftDetector
from tenantry.tenants.keyring import Keyring
from tenantry.tenants.lanes import Lanes
from tenantry.tenants.mover import Mover, Progress
from tenantry.tenants.moves import LaneMove, Move, MoveStore, Stage
from tenantry.tenants.plans import DEFAULT_PLAN, Limits, Plan, read_limits, read_overrides
from tenantry.tenants.provisioner import Provisioner
from tenantry.tenants.registry import Registry
from tenantry.tenants.spec import (
    TenantSpec,
    merge_overrides,
    read_channels,
    read_placement,
    require_text,
    require_valid,
    without_nulls,
)
from tenantry.tenants.tenant import DEFAULT_CHANNELS, Channel, Status, Tenant, Tier

MOST_CHANNELS: Final = 32


class Administration:
    def __init__(
        self,
        pool: Pool,
        registry: Registry,
        credentials: CredentialDesk,
        keys: ApiKeys,
        moves: MoveStore,
        audit: AuditLog,
        lanes: Lanes,
        backbone: Backbone,
        provisioner: Provisioner,
        mover: Mover,
        drift: DriftDetector,
        budget: AssetBudget,
        *,
        keyring: Keyring,
        pool_lanes: int,
    ) -> None:
        self.pool = pool
        self.registry = registry
        self.credentials = credentials
        self.keys = keys
        self.moves = moves
        self.audit = audit
        self.lanes = lanes
        self.provisioner = provisioner
        self.mover = mover
        self.drift = drift
        self.backbone = backbone
        self.keyring = keyring
        self._budget = budget
        self._pool_lanes = pool_lanes

    async def put(self, spec: TenantSpec, actor: str, *, must_exist: bool = False) -> tuple[Tenant, bool]:
        """Create the tenant, or change it to what the spec says; whether it was created.

        When this returns, the servers have it, unless they could not be reached: then `is_ready` is false, `problem`
        says why, and it is completed by itself later.
        """
        require_valid("tenant", spec.id, "id")
        async with self.registry.change(spec.id) as connection:
            before = await (self.registry.get if must_exist else self.registry.find)(spec.id, connection)
            assets = await self._budget.count(connection)
            if before is None:
                await self._create(connection, spec)
                act = "tenant.create"
            else:
                act = "tenant.change" if await self._change(connection, before, spec) else ""
            after = await self.registry.get(spec.id, connection)
            if act:
                await self._budget.require_room(connection, f"tenant {spec.id}", assets)
                await self._record(connection, actor, act, before, after)
        return await self._carry_out(after), before is None

    async def suspend(self, tenant: str, actor: str) -> Tenant:
        """Cut publishing and consumption at once, and keep the data."""
        return await self._set_status(tenant, Status.SUSPENDED, "tenant.suspend", actor)

    async def resume(self, tenant: str, actor: str) -> Tenant:
        return await self._set_status(tenant, Status.ACTIVE, "tenant.resume", actor)

    async def delete(self, tenant: str, actor: str) -> None:
        """Erase all that the tenant has, everywhere. The audit log keeps that it was done."""
        async with self.registry.change(tenant) as connection:
            before = await self.registry.get(tenant, connection)
            await self._require_still(connection, before)
            if before.status != Status.DELETING:
                await self.registry.set_status(connection, tenant, Status.DELETING)
                await self._record(connection, actor, "tenant.delete", before, None)
        await self.provisioner.converge(tenant)

    async def plan_move(self, tenant: str, to: str) -> list[LaneMove]:
        """What `move` would do."""
        found = await self.registry.get(tenant)
        await self._require_movable(found, to)
        return self.mover.plan(found, Tier(to))

    async def move(self, tenant: str, to: str, actor: str, progress: Progress = lambda *_: None) -> Move:
        """Move the tenant to a tier above; a move that was broken off is carried on."""
        await self.begin_move(tenant, to, actor)
        await self.mover.carry_on(tenant, progress)
        done = await self.moves.newest(tenant)
        assert done is not None
        return done

    async def begin_move(self, tenant: str, to: str, actor: str) -> Move:
        """Record that the tenant is to move; whoever looks after tenants carries it out."""
        async with self.registry.change(tenant) as connection:
            found = await self.registry.get(tenant, connection)
            under_way = await self.moves.unfinished(tenant, connection)
            done = await self.moves.newest(tenant, connection)
            if under_way is None and done is not None and found.tier == done.to_tier == to:
                # Somebody else has carried it on.
                return done
            if under_way is None:
                await self._require_movable(found, to)
                plan = self.mover.plan(found, Tier(to))
                await self._budget.require_room_for_move(connection, found, self.lanes.replicas(found))
                under_way = await self.moves.start(connection, tenant, found.tier, Tier(to), plan)
                await self.audit.append(
                    connection, actor, "tenant.move", tenant, before={"tier": found.tier}, after={"tier": to}
                )
            elif under_way.to_tier != to or under_way.stage == Stage.ABANDONING:
                raise TenantConflict(
                    f"tenant {tenant} is on its way to the tier {under_way.to_tier}; let it arrive first"
                )
            return under_way

    async def abandon_move(self, tenant: str, actor: str) -> Tenant:
        """Give up a move that is still copying."""
        async with self.registry.change(tenant) as connection:
            found = await self.registry.get(tenant, connection)
            move = await self.moves.unfinished(tenant, connection)
            if move is None:
                raise TenantConflict(f"tenant {tenant} is not being moved")
            if move.stage not in (Stage.COPYING, Stage.ABANDONING):
                raise TenantConflict(
                    f"the move of tenant {tenant} is past the point where it could be given up; "
                    f"`tenantry tenant move {tenant}` carries it on"
                )
            if move.stage == Stage.COPYING:
                await self.moves.advance(move, Stage.ABANDONING, connection)
                await self.audit.append(connection, actor, "tenant.abandon_move", tenant, after={"tier": found.tier})
        await self.mover.carry_on(tenant)
        return await self.registry.get(tenant)

    async def put_plan(self, name: str, limits: Mapping[str, Any], actor: str) -> Plan:
        """Create or change a plan; what is left out stays as it is. Its tenants follow within seconds."""
        require_valid("channel", name, "plan", "plan")
        async with self.registry.change(f"plan/{name}") as connection:
            before = next((plan for plan, _ in await self.registry.plans(connection) if plan.name == name), None)
            plan = Plan(name, read_limits(limits, before.limits if before else None))
            if before == plan:
                return plan
            assets = await self._budget.count(connection)
            await self.registry.put_plan(connection, plan)
            await self._budget.require_room(connection, f"this plan {name}", assets)
            await self.audit.append(
                connection,
                actor,
                "plan.change" if before else "plan.create",
                before=msgspec.to_builtins(before) if before else None,
                after=msgspec.to_builtins(plan),
            )
        return plan

    async def delete_plan(self, name: str, actor: str) -> None:
        async with self.registry.change(f"plan/{name}") as connection:
            plan = await self.registry.plan(connection, name)
            try:
                await self.registry.delete_plan(connection, name)
            except database_errors.ForeignKeyViolation:
                raise TenantConflict(f"plan {name} has tenants; put them on another plan first") from None
            await self.audit.append(connection, actor, "plan.delete", before=msgspec.to_builtins(plan))

    async def _create(self, connection: Connection, spec: TenantSpec) -> None:
        plan = await self._plan(connection, spec.plan or DEFAULT_PLAN)
        tier = self._read_tier(spec.tier or Tier.STREAM)
        overrides = read_overrides(without_nulls(spec.overrides or {}))
        placement = read_placement(spec.placement or {})
        channels = read_channels(spec.channels or {}) or [Channel(name=name) for name in DEFAULT_CHANNELS]
        name = spec.id if spec.name is None else require_text("name", spec.name)
        await self.registry.insert(connection, spec.id, name, plan.name, tier, overrides, placement)
        limits = read_limits(overrides, plan.limits)
        await self._put_channels(connection, spec.id, tier, limits, channels)

    async def _change(self, connection: Connection, before: Tenant, spec: TenantSpec) -> bool:
        """Whether anything is to be different."""
        if before.status == Status.DELETING:
            raise TenantConflict(f"tenant {spec.id} is being deleted; wait until it is gone, then create it anew")
        if spec.tier is not None and self._read_tier(spec.tier) != before.tier:
            raise TenantConflict(
                f"tenant {spec.id} is in the tier {before.tier}"
                + (
                    f"; `tenantry tenant move {spec.id} --to {spec.tier}` moves it"
                    if Tier(spec.tier).is_above(before.tier)
                    else ", and tenants move up only"
                )
            )
        plan = await self._plan(connection, spec.plan or before.plan)
        overrides = read_overrides(merge_overrides(before.overrides, spec.overrides or {}))
        placement = before.placement if spec.placement is None else read_placement(spec.placement)
        name = before.name if spec.name is None else require_text("name", spec.name)
        removed = self._removed_channels(before, spec)
        changed = [each for each in read_channels(spec.channels or {}) if _is_new(before, each)]
        same = (name, plan.name, overrides, placement) == (before.name, before.plan, before.overrides, before.placement)
        if same and not changed and not removed:
            return False
        await self._require_still(connection, before)
        left = {each.name for each in before.channels} - removed | {each.name for each in changed}
        if len(left) > MOST_CHANNELS:
            raise TenantInvalid("channels", f"expected at most {MOST_CHANNELS} channels, got: {len(left)}")
        await self.registry.update(connection, spec.id, name, plan.name, overrides, placement)
        await self._put_channels(connection, spec.id, before.tier, read_limits(overrides, plan.limits), changed)
        if removed:
            await self.registry.remove_channels(connection, spec.id, removed)
        return True

    def _removed_channels(self, before: Tenant, spec: TenantSpec) -> set[str]:
        removed = {name for name in spec.without_channels if before.channel(name)}
        left = {each.name for each in before.channels if not each.removing} | set(spec.channels or ())
        if removed and not left - removed:
            raise TenantConflict(f"tenant {spec.id} needs at least one channel; delete the tenant to erase all of it")
        return removed

    async def _put_channels(
        self, connection: Connection, tenant: str, tier: Tier, limits: Limits, channels: list[Channel]
    ) -> None:
        if len(channels) > MOST_CHANNELS:
            raise TenantInvalid("channels", f"expected at most {MOST_CHANNELS} channels, got: {len(channels)}")
        if self.lanes.shares_streams(tier):
            channels = [
                each.in_pool(
                    await self.registry.pool_with_room(
                        connection, each.retention or limits.retention_of(each.name), self._pool_lanes
                    )
                )
                for each in channels
            ]
        if channels:
            await self.registry.put_channels(connection, tenant, channels)

    async def _plan(self, connection: Connection, name: str) -> Plan:
        try:
            return await self.registry.plan(connection, name)
        except TenantNotFound as problem:
            raise TenantInvalid("plan", str(problem)) from None

    def _read_tier(self, tier: str) -> Tier:
        if tier not in list(Tier):
            raise TenantInvalid("tier", f"expected tier to be one of {', '.join(Tier)}, got: {tier!r}")
        self.lanes.require_possible(Tier(tier))
        return Tier(tier)

    async def _require_movable(self, tenant: Tenant, to: str) -> None:
        target = self._read_tier(to)
        tenant.require_active()
        if not target.is_above(tenant.tier):
            raise TenantConflict(
                f"tenant {tenant.id} is in the tier {tenant.tier} and can only move up: "
                f"{', '.join(each for each in Tier if each.is_above(tenant.tier)) or 'there is none above'}"
            )
        if not tenant.is_ready or any(each.removing for each in tenant.channels):
            raise TenantConflict(f"tenant {tenant.id} is still being provisioned; try again in a moment")

    async def _require_still(self, connection: Connection, tenant: Tenant) -> None:
        if await self.moves.unfinished(tenant.id, connection):
            raise TenantConflict(
                f"tenant {tenant.id} is being moved; `tenantry tenant move {tenant.id}` carries the move on, and with "
                "--abandon gives it up"
            )

    async def _set_status(self, tenant: str, status: Status, act: str, actor: str) -> Tenant:
        async with self.registry.change(tenant) as connection:
            before = await self.registry.get(tenant, connection)
            if before.status == Status.DELETING:
                raise TenantConflict(f"tenant {tenant} is being deleted")
            if before.status != status:
                await self.registry.set_status(connection, tenant, status)
                after = await self.registry.get(tenant, connection)
                await self._record(connection, actor, act, before, after)
        return await self._carry_out(before)

    async def _carry_out(self, tenant: Tenant) -> Tenant:
        return await self._try(tenant.id) or await self.registry.get(tenant.id)

    async def _try(self, tenant: str) -> Tenant | None:
        """What could not be done is on record with its reason, and is done later."""
        with suppress(ProvisioningFailed):
            return await self.provisioner.converge(tenant)
        return None

    async def _record(
        self, connection: Connection, actor: str, act: str, before: Tenant | None, after: Tenant | None
    ) -> None:
        whom = after or before
        assert whom is not None
        await self.audit.append(
            connection,
            actor,
            act,
            whom.id,
            before=before.describe() if before else None,
            after=after.describe() if after else None,
        )


def _is_new(before: Tenant, wanted: Channel) -> bool:
    """Whether a channel is to be added or changed."""
    have = before.channel(wanted.name)
    if have is None:
        if any(each.name == wanted.name for each in before.channels):
            raise TenantConflict(
                f"channel {wanted.name} of tenant {before.id} is still being erased; try again in a moment"
            )
        return True
    if have.pool is None:
        return have.retention != wanted.retention
    if wanted.retention not in (None, have.retention):
        raise TenantConflict(
            f"channel {wanted.name} of tenant {before.id} is in a shared stream, which has one retention; "
            f"`tenantry tenant move {before.id} --to stream` gives it a stream of its own"
        )
    return False
