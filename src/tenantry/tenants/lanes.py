"""Lanes: where a tenant's channel lives. This is the one place that knows what the tiers mean.

Every tenant has a NATS account of its own, whatever its tier; its users live there and nowhere else. What differs is
where the streams are: in that account (`account`), or in the platform's, into which the tenant's account then has a
door: imports for its own subjects, and for nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final
from uuid import UUID

import msgspec

from tenantry.errors import TenantConflict, TenantNotFound
from tenantry.nats import claims
from tenantry.nats.authority import Authority, account_of
from tenantry.nats.connections import Broker
from tenantry.nats.jetstream import Config
from tenantry.nats.keys import Key
from tenantry.tenants.keyring import Keyring
from tenantry.tenants.registry import Registry
from tenantry.tenants.tenant import Channel, Tenant, Tier

TENANT_MARK: Final = "tenantry.tenant"
CHANNEL_MARK: Final = "tenantry.channel"
POOL_MARK: Final = "tenantry.pool"
# A subject of one tenant in a shared stream keeps no more than this, so that a flood pushes out only its own.
POOLED_MESSAGES_PER_TYPE: Final = 100_000
NANOSECONDS: Final = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Lane:
    """One isolated, ordered log."""

    tenant: str
    channel: str
    stream: str
    prefix: str
    """What its subjects start with: `{namespace}.tenants.{tenant}.{channel}`."""
    broker: Broker
    """Who reaches it."""
    account: str
    """The account that holds the stream; empty where there are no accounts."""
    is_shared: bool = False
    """Whether other tenants' lanes are in the same stream."""

    @property
    def subjects(self) -> str:
        return f"{self.prefix}.>"

    def message_id(self, event_id: str) -> str:
        """The id under which a stream stores an event once.

        A shared stream knows one id for all tenants, so it names the tenant. It is the same at every tier: whoever
        still publishes to the lane of before a move stores nothing twice.
        """
        return f"{self.tenant}/{event_id}"

    def consumer_name(self, service: str) -> str:
        """The durable consumer of a service on this lane."""
        return f"{self.tenant}_{self.channel}_{service}" if self.is_shared else service

    def direct_get(self) -> list[str]:
        """Where its messages may be asked for by somebody who may see no other lane's."""
        asked = f"$JS.API.DIRECT.GET.{self.stream}"
        return [f"{asked}.{self.subjects}"] if self.is_shared else [asked, f"{asked}.>"]


class Lanes:
    """Resolves a tenant and a channel to a lane."""

    def __init__(
        self,
        app: str,
        platform: Broker,
        authority: Authority | None,
        keyring: Keyring,
        registry: Registry,
        *,
        most_replicas: int = 1,
    ) -> None:
        self.app = app
        self.platform = platform
        self.has_accounts = authority is not None
        self.platform_account = account_of(platform)
        self._keyring = keyring
        self._registry = registry
        self._most_replicas = most_replicas
        self._insiders: dict[str, Broker] = {}

    async def resolve(self, tenant: str, channel: str) -> Lane:
        """The lane to publish to and read from now. It raises for a tenant that may do neither."""
        found = await self._registry.get(tenant)
        found.require_active()
        named = found.channel(channel)
        if named is None:
            raise TenantNotFound(
                f"tenant {tenant} has no channel {channel!r}, only {', '.join(each.name for each in found.channels)}; "
                f"add it with `tenantry tenant set {tenant} --channel {channel}`"
            )
        return self.lane(found, named)

    def lane(self, tenant: Tenant, channel: Channel) -> Lane:
        prefix = f"{self.app}.tenants.{tenant.id}.{channel.name}"
        stream = f"TENANT_{tenant.id}_{channel.name}".upper()
        match tenant.tier:
            case Tier.POOLED:
                pool = pool_name(channel.pool)
                return Lane(tenant.id, channel.name, pool, prefix, self.platform, self.platform_account, True)
            case Tier.STREAM:
                return Lane(tenant.id, channel.name, stream, prefix, self.platform, self.platform_account)
            case Tier.ACCOUNT:
                account = self.account_key(tenant)
                return Lane(tenant.id, channel.name, stream, prefix, self.inside(tenant), account.public)

    def shares_streams(self, tier: Tier) -> bool:
        """Whether channels at this tier need a place in a shared stream."""
        return tier == Tier.POOLED

    def require_publishable(self, tenant: Tenant) -> None:
        """Whether a tenant may publish to NATS itself.

        A shared stream drops an event whose id it has, whoever published that: a tenant that may choose ids could make
        it drop a neighbour's. So what goes into one comes through the outbox or HTTP, where ids are kept apart.
        """
        if self.shares_streams(tenant.tier):
            raise TenantConflict(
                f"tenant {tenant.id} is in the pooled tier, where events come in through the outbox or HTTP alone; "
                f"`tenantry tenant move {tenant.id} --to stream` lets it publish to NATS itself"
            )

    def require_leaf(self, tenant: Tenant) -> None:
        """Whether a tenant may connect leaf nodes.

        The server takes replies from a leaf node that it would take from no client, and acknowledges with them what
        they name. Where others' streams are only an import away, that reaches others' consumers.
        """
        if tenant.tier != Tier.ACCOUNT:
            raise TenantConflict(
                f"tenant {tenant.id} is in the tier {tenant.tier}, and leaf nodes need the tier account; "
                f"`tenantry tenant move {tenant.id} --to account` first"
            )

    def require_possible(self, tier: Tier) -> None:
        """Whether the servers can do it."""
        if tier == Tier.ACCOUNT and not self.has_accounts:
            raise TenantConflict(
                "the tier account needs a NATS server in operator mode: use the embedded one, or set nats_operator_key "
                "and nats_system_creds; the tier stream works on any server"
            )

    def lanes(self, tenant: Tenant) -> list[Lane]:
        return [self.lane(tenant, channel) for channel in tenant.channels if not channel.removing]

    def prefix(self, tenant: Tenant) -> str:
        """What all subjects of a tenant start with."""
        return f"{self.app}.tenants.{tenant.id}"

    def account_key(self, tenant: Tenant) -> Key:
        return self._keyring.account(tenant.uid)

    def copy_token(self, move: UUID) -> str:
        return self._keyring.copy_token(move)

    def inside(self, tenant: Tenant) -> Broker:
        """A user of ours in the tenant's account."""
        key = self.account_key(tenant)
        if key.public not in self._insiders:
            credentials = claims.issue_user(key, "tenantry")
            self._insiders[key.public] = Broker(self.platform.url, credentials, self.platform.tls)
        return self._insiders[key.public]

    def replicas(self, tenant: Tenant) -> int:
        return min(tenant.limits.replicas, self._most_replicas)

    def stream_config(self, tenant: Tenant, channel: Channel) -> Config:
        """The stream that a lane has to itself."""
        lane, limits = self.lane(tenant, channel), tenant.limits
        retention = tenant.retention_of(channel)
        config: Config = {
            "name": lane.stream,
            "subjects": [lane.subjects],
            "retention": "limits",
            "storage": "file",
            "discard": limits.discard,
            "max_age": retention * NANOSECONDS,
            "max_bytes": limits.storage,
            "max_msgs": limits.messages,
            "max_msg_size": limits.payload,
            "num_replicas": self.replicas(tenant),
            "duplicate_window": min(limits.duplicate_window, retention) * NANOSECONDS,
            "allow_direct": True,
            "mirror_direct": False,
            "metadata": {TENANT_MARK: tenant.id, CHANNEL_MARK: channel.name},
        }
        placement = {"cluster": tenant.placement.cluster, "tags": list(tenant.placement.tags)}
        if any(placement.values()):
            config["placement"] = {name: value for name, value in placement.items() if value}
        return config

    def pool_config(self, number: int, retention: int, lanes: list[str]) -> Config:
        """A stream that many lanes share; `lanes` are `{tenant}.{channel}`. It has no size of its own to fight over."""
        return {
            "name": pool_name(number),
            # A stream without subjects would listen to its own name.
            "subjects": [f"{self.app}.tenants.{lane}.>" for lane in lanes] or [f"{self.app}.pools.{number}"],
            "retention": "limits",
            "storage": "file",
            "discard": "old",
            "max_age": retention * NANOSECONDS,
            "max_msgs_per_subject": POOLED_MESSAGES_PER_TYPE,
            "num_replicas": self._most_replicas,
            "duplicate_window": min(120, retention) * NANOSECONDS,
            "allow_direct": True,
            "metadata": {POOL_MARK: str(number)},
        }


def at_tier(tenant: Tenant, tier: Tier) -> Tenant:
    """The tenant as it would be at another tier."""
    return msgspec.structs.replace(tenant, tier=tier)


def pool_name(number: int | None) -> str:
    return f"POOL_{number}"
