"""Puts the parts together, for the doors: `async with open_administration(…) as tenants`."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tenantry.config import Settings
from tenantry.nats.authority import Authority
from tenantry.nats.connections import Broker
from tenantry.postgres.locks import Locks
from tenantry.postgres.pool import open_pool
from tenantry.tenants.administration import Administration
from tenantry.tenants.api_keys import ApiKeys
from tenantry.tenants.audit import AuditLog
from tenantry.tenants.backbone import Backbone
from tenantry.tenants.budget import AssetBudget
from tenantry.tenants.credential_desk import CredentialDesk
from tenantry.tenants.credentials import CredentialStore
from tenantry.tenants.door import platform_exports
from tenantry.tenants.drift import DriftDetector
from tenantry.tenants.keyring import Keyring
from tenantry.tenants.lanes import Lanes
from tenantry.tenants.mover import Mover
from tenantry.tenants.moves import MoveStore
from tenantry.tenants.pools import Pools
from tenantry.tenants.provisioner import Provisioner
from tenantry.tenants.registry import Registry


@asynccontextmanager
async def open_administration(
    settings: Settings, *, broker: Broker, authority: Authority | None, database_url: str, secret: str
) -> AsyncIterator[Administration]:
    """Everything that looks after tenants, connected; the schema must be up to date."""
    keyring = Keyring(secret)
    async with (
        open_pool(database_url, settings.database_pool) as pool,
        Locks.open(database_url) as locks,
        Backbone.open(broker, authority) as backbone,
    ):
        registry, moves, credentials = Registry(pool), MoveStore(pool), CredentialStore(pool)
        lanes = Lanes(settings.namespace, broker, authority, keyring, registry, most_replicas=settings.nats_replicas)
        audit = AuditLog(pool, keyring.audit)
        pools = Pools(pool, locks, lanes, backbone.platform)
        provisioner = Provisioner(
            pool,
            registry,
            locks,
            credentials,
            moves,
            audit,
            lanes,
            pools,
            backbone,
            parallel=settings.provisioning_parallel,
        )
        mover = Mover(registry, locks, moves, audit, lanes, pools, backbone, provisioner)
        await registry.ship_plans()
        if backbone.has_accounts:
            await backbone.establish_exports(platform_exports(settings.namespace))
        yield Administration(
            pool,
            registry,
            CredentialDesk(registry, credentials, audit, lanes, backbone, provisioner),
            ApiKeys(pool, audit),
            moves,
            audit,
            lanes,
            backbone,
            provisioner,
            mover,
            DriftDetector(registry, moves, lanes, pools, backbone, provisioner),
            AssetBudget(settings.asset_budget, settings.nats_replicas),
            keyring=keyring,
            pool_lanes=settings.pool_lanes,
        )
