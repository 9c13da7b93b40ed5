"""Drift: what the servers have, compared with what the registry wants, and put right again.

What is not Tenantry's is told and never touched. Neither is a stream that bears our mark but whose tenant the registry
does not know: it may hold the only copy of somebody's events.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from enum import StrEnum
from typing import Any, Final

import msgspec

from tenantry.errors import BrokerError, TenantryError
from tenantry.nats import claims
from tenantry.nats.jetstream import Config, JetStream
from tenantry.telemetry import signal
from tenantry.tenants.backbone import Backbone
from tenantry.tenants.lanes import POOL_MARK, TENANT_MARK, Lanes
from tenantry.tenants.moves import MoveStore
from tenantry.tenants.pools import Pools
from tenantry.tenants.provisioner import Provisioner
from tenantry.tenants.registry import Registry
from tenantry.tenants.streams import differences, marks
from tenantry.tenants.tenant import Status, Tenant

DRIFTED = signal(
    "tenants.drifted",
    "The servers were not as the registry wants them.",
    "drift",
    "what",
    "name",
    "tenant",
    "repaired",
    level="warning",
)

AT_ONCE: Final = 8


class Kind(StrEnum):
    MISSING = "missing"
    CHANGED = "changed"
    ORPHAN = "orphan"
    """It bears our mark, and the registry knows nothing of it."""
    FOREIGN = "foreign"
    """It is not ours."""


class Drift(msgspec.Struct, kw_only=True):
    kind: Kind
    what: str
    """`stream` or `account`."""
    name: str
    tenant: str | None = None
    details: dict[str, Any] = {}
    repaired: bool = False

    @property
    def is_ours_to_repair(self) -> bool:
        return self.kind in (Kind.MISSING, Kind.CHANGED)


class DriftDetector:
    def __init__(
        self,
        registry: Registry,
        moves: MoveStore,
        lanes: Lanes,
        pools: Pools,
        backbone: Backbone,
        provisioner: Provisioner,
    ) -> None:
        self._registry = registry
        self._moves = moves
        self._lanes = lanes
        self._pools = pools
        self._backbone = backbone
        self._provisioner = provisioner
        self._room = asyncio.Semaphore(AT_ONCE)

    async def find(self) -> list[Drift]:
        moving = await self._moves.all_unfinished()
        tenants = [tenant async for tenant in self._registry.all()]
        # What is still being worked on is not drift.
        busy = {each.id for each in tenants if not each.is_ready or each.status == Status.DELETING} | moving
        settled = [each for each in tenants if each.id not in busy]
        found = await self._on_the_platform(settled, busy)
        try:
            async with asyncio.TaskGroup() as group:
                by_tenant = [group.create_task(self._of_account(tenant)) for tenant in settled]
        except* TenantryError as problems:
            raise problems.exceptions[0] from None
        return found + [drift for task in by_tenant for drift in task.result()]

    async def repair(self) -> list[Drift]:
        """Put right what is ours; what was found, and whether it could be put right."""
        drifts = await self.find()
        for tenant in sorted({drift.tenant for drift in drifts if drift.tenant and drift.is_ours_to_repair}):
            own = [drift for drift in drifts if drift.tenant == tenant and drift.is_ours_to_repair]
            await self._try(own, self._provisioner.converge(tenant, again=True))
        for drift in drifts:
            if drift.is_ours_to_repair and drift.tenant is None:
                await self._try([drift], self._pools.settle(int(drift.details.pop("pool"))))
        for drift in drifts:
            if drift.kind != Kind.FOREIGN:
                DRIFTED.emit(
                    drift=drift.kind, what=drift.what, name=drift.name, tenant=drift.tenant, repaired=drift.repaired
                )
        return drifts

    async def _try(self, drifts: list[Drift], repair: Any) -> None:
        try:
            await repair
        except TenantryError as problem:
            for drift in drifts:
                drift.details["problem"] = str(problem)
        else:
            for drift in drifts:
                drift.repaired = True

    async def _on_the_platform(self, settled: list[Tenant], busy: set[str]) -> list[Drift]:
        wanted: dict[str, Config] = {config["name"]: config for config in await self._pools.wanted()}
        for tenant in settled:
            wanted |= self._own_streams(tenant, inside=False)
        return await _compare(self._backbone.platform, wanted, busy)

    async def _of_account(self, tenant: Tenant) -> list[Drift]:
        if not self._backbone.has_accounts:
            return []
        async with self._room:
            key = self._lanes.account_key(tenant)
            wanted = claims.read(await self._provisioner.claims(tenant, self._lanes.lanes(tenant)))["nats"]
            token = await self._backbone.accounts.lookup(key.public)
            if token is None:
                return [Drift(kind=Kind.MISSING, what="account", name=key.public, tenant=tenant.id)]
            have = claims.read(token)["nats"]
            # Users who are locked out and whose claims have expired meanwhile may stay so.
            if (wanted.get("revocations") or {}).items() <= (have.get("revocations") or {}).items():
                wanted["revocations"] = have.get("revocations")
            changed = {
                field: {"found": have.get(field), "wanted": wanted.get(field)}
                for field in wanted.keys() | have.keys()
                if have.get(field) != wanted.get(field)
            }
            drifts = [Drift(kind=Kind.CHANGED, what="account", name=key.public, tenant=tenant.id, details=changed)]
            drifts = drifts if changed else []
            if streams := self._own_streams(tenant, inside=True):
                # Claims that lock us out are told by the comparison above.
                with suppress(BrokerError):
                    async with self._backbone.jetstream(self._lanes.inside(tenant)) as jetstream:
                        drifts += await _compare(jetstream, streams, set())
            return drifts

    def _own_streams(self, tenant: Tenant, *, inside: bool) -> dict[str, Config]:
        lanes = {channel: self._lanes.lane(tenant, channel) for channel in tenant.channels}
        return {
            lane.stream: self._lanes.stream_config(tenant, channel)
            for channel, lane in lanes.items()
            if not lane.is_shared and (lane.broker != self._backbone.broker) == inside
        }


async def _compare(jetstream: JetStream, wanted: Mapping[str, Config], busy: set[str]) -> list[Drift]:
    drifts: list[Drift] = []
    seen: set[str] = set()
    async for found in _configs(jetstream):
        seen.add(found["name"])
        config = wanted.get(found["name"])
        if config is None:
            mark = marks(found)
            # What a tenant has that is being worked on is none of our business now.
            if mark.get(TENANT_MARK) not in busy:
                drifts.append(Drift(kind=Kind.ORPHAN if mark else Kind.FOREIGN, what="stream", name=found["name"]))
        elif marks(found) != marks(config):
            drifts.append(_ours(Kind.MISSING, config, {"problem": "a stream that is not Tenantry's has its name"}))
        elif changed := differences(config, found):
            details = {field: {"found": have, "wanted": want} for field, (have, want) in changed.items()}
            drifts.append(_ours(Kind.CHANGED, config, details))
    drifts += [_ours(Kind.MISSING, config, {}) for name, config in wanted.items() if name not in seen]
    return drifts


def _ours(kind: Kind, config: Config, details: dict[str, Any]) -> Drift:
    mark = marks(config)
    if POOL_MARK in mark:
        details = details | {"pool": mark[POOL_MARK]}
    return Drift(kind=kind, what="stream", name=config["name"], tenant=mark.get(TENANT_MARK), details=details)


async def _configs(jetstream: JetStream) -> AsyncIterator[Config]:
    async for stream in jetstream.streams():
        yield stream["config"]
