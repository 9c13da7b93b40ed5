"""The durable consumers of services on the lanes of tenants, as JetStream tells of them."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterable
from typing import Any, Final, NamedTuple

import msgspec

from tenantry.errors import BrokerError
from tenantry.nats.connections import Broker
from tenantry.nats.jetstream import JetStream
from tenantry.tenants.backbone import Backbone
from tenantry.tenants.lanes import Lane

ACCOUNTS_AT_ONCE: Final = 8
PART_MARK: Final = "~"
"""Between the name of a service and the number of a part; names of services have none."""


class Lag(msgspec.Struct, frozen=True, kw_only=True):
    """How far a service is with a tenant's events. Each part goes through all of them and handles its own."""

    service: str
    tenant_id: str
    channel: str
    part: int
    pending: int | None = None
    """Events that are yet to be handed out; None: there is no consumer, for no worker has had the tenant yet."""
    in_flight: int | None = None
    """Events that are handed out and not done."""
    redelivered: int | None = None
    """Of those in flight, how many were handed out before."""
    ack_floor: int | None = None
    """The sequence up to which everything is done."""
    last_sequence: int | None = None
    """Of the newest event on the lane."""
    problem: str = ""
    """Why JetStream could not be asked."""


class Served(NamedTuple):
    """A lane that a service handles, in so many parts."""

    service: str
    parts: int
    lane: Lane

    def consumer(self, part: int) -> str:
        return self.lane.consumer_name(f"{self.service}{PART_MARK}{part}" if self.parts > 1 else self.service)

    def lag(self, part: int, **figures: Any) -> Lag:
        return Lag(service=self.service, tenant_id=self.lane.tenant, channel=self.lane.channel, part=part, **figures)


class LaneConsumers:
    def __init__(self, backbone: Backbone) -> None:
        self._backbone = backbone
        self._room = asyncio.Semaphore(ACCOUNTS_AT_ONCE)

    async def lag(self, served: Iterable[Served]) -> list[Lag]:
        """An account that cannot be reached is told of, and keeps nobody else's from being read."""
        accounts: dict[Broker, list[Served]] = defaultdict(list)
        for each in served:
            accounts[each.lane.broker].append(each)
        found = await asyncio.gather(*(self._lag_in(broker, its) for broker, its in accounts.items()))
        return [lag for lags in found for lag in lags]

    async def delete(self, service: str, lanes: Iterable[Lane]) -> int:
        """All consumers of the service, also of parts that it had once; how many there were."""
        accounts: dict[Broker, list[Lane]] = defaultdict(list)
        for lane in lanes:
            accounts[lane.broker].append(lane)
        return sum(await asyncio.gather(*(self._delete_in(broker, service, its) for broker, its in accounts.items())))

    async def _lag_in(self, broker: Broker, served: list[Served]) -> list[Lag]:
        try:
            async with self._room, self._backbone.jetstream(broker) as jetstream:
                lanes = list({(each.lane.stream, each.lane.subjects) for each in served})
                last = await asyncio.gather(*(jetstream.last_sequence(*lane) for lane in lanes))
                newest = dict(zip(lanes, last, strict=True))
                asked = [(each, part) for each in served for part in range(each.parts)]
                return list(await asyncio.gather(*(_lag(jetstream, each, part, newest) for each, part in asked)))
        except BrokerError as problem:
            return [each.lag(part, problem=str(problem)) for each in served for part in range(each.parts)]

    async def _delete_in(self, broker: Broker, service: str, lanes: list[Lane]) -> int:
        async with self._room, self._backbone.jetstream(broker) as jetstream:
            deleted = 0
            for stream in {lane.stream for lane in lanes}:
                names = [lane.consumer_name(service) for lane in lanes if lane.stream == stream]
                there = [consumer["name"] async for consumer in jetstream.consumers(stream)]
                gone = [name for name in there if name.partition(PART_MARK)[0] in names]
                deleted += sum(await asyncio.gather(*(jetstream.delete_consumer(stream, name) for name in gone)))
            return deleted


async def _lag(jetstream: JetStream, served: Served, part: int, newest: dict[tuple[str, str], int]) -> Lag:
    lane = served.lane
    info = await jetstream.consumer(lane.stream, served.consumer(part))
    last = newest[lane.stream, lane.subjects]
    if info is None:
        return served.lag(part, last_sequence=last)
    return served.lag(
        part,
        last_sequence=last,
        pending=info["num_pending"],
        in_flight=info["num_ack_pending"],
        redelivered=info["num_redelivered"],
        ack_floor=info["ack_floor"]["stream_seq"],
    )
