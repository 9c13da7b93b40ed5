"""All that some worker should hold: each tenant's events, for each service that is interested in them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import NamedTuple

from tenantry.application import Subscriber
from tenantry.event import now
from tenantry.nats.jetstream import Config
from tenantry.subscriptions.durables import durable_config
from tenantry.subscriptions.spreading import Partition
from tenantry.tenants.lanes import Lane, Lanes
from tenantry.tenants.roster import Roster
from tenantry.tenants.tenant import Status, Tenant


class Wanted(NamedTuple):
    """A partition, and all that it takes to hold it."""

    subscriber: Subscriber
    lane: Lane
    identity: object
    """A tenant that was made again under its old id is another one."""
    plan: str
    weight: float
    consumer: str
    config: Config | None
    """How the consumer is to be; none: it is somebody else's, and as they made it."""

    def is_like(self, other: Wanted) -> bool:
        """Whether what is held for one is right for the other."""
        return self is other or self._replace(weight=0, plan="") == other._replace(weight=0, plan="")


class Demand:
    def __init__(self, subscribers: Iterable[Subscriber], roster: Roster, lanes: Lanes) -> None:
        self.since: dict[str, datetime] = {}
        """When each service came to be."""
        self._for_all = list(subscribers)
        self._for_one: dict[str, list[Subscriber]] = {}
        self._foreign: dict[Partition, Wanted] = {}
        self._roster = roster
        self._lanes = lanes
        self._changes = 0
        self._seen = (-1, -1)
        self._wanted: dict[Partition, Wanted] = {}

    @property
    def partitions(self) -> dict[Partition, Wanted]:
        seen = (self._roster.changes, self._changes)
        if seen != self._seen:
            self._seen = seen
            self._wanted = {partition: each for tenant in self._roster for partition, each in self._of(tenant)}
            self._wanted |= self._foreign
        return self._wanted

    async def refresh(self) -> None:
        """Ask the registry now."""
        await self._roster.refresh()

    def subscribe_tenants(self, subscribers: dict[str, list[Subscriber]]) -> None:
        """Those who are interested in one tenant each, instead of those before."""
        self._for_one = subscribers
        self._changes += 1

    def add(self, partition: Partition, wanted: Wanted) -> None:
        """What is not of a tenant of ours."""
        self._foreign[partition] = wanted
        self._changes += 1

    def remove(self, partition: Partition) -> None:
        del self._foreign[partition]
        self._changes += 1

    def _of(self, tenant: Tenant) -> Iterator[tuple[Partition, Wanted]]:
        if tenant.status != Status.ACTIVE:
            return
        limits = tenant.limits
        for subscriber in (*self._for_all, *self._for_one.get(tenant.id, ())):
            lane = self._roster.lane(tenant.id, subscriber.channel)
            if lane is None:
                continue
            for part in range(subscriber.parts):
                config = durable_config(
                    lane,
                    subscriber,
                    part,
                    in_flight=subscriber.in_flight
                    if subscriber.is_fifo
                    else min(subscriber.in_flight, limits.in_flight),
                    replicas=min(limits.consumer_replicas, self._lanes.replicas(tenant)),
                    since=self.since.get(subscriber.name) or now(),
                )
                wanted = Wanted(subscriber, lane, tenant.uid, tenant.plan, limits.weight, config["name"], config)
                yield Partition(subscriber.name, tenant.id, part), wanted
