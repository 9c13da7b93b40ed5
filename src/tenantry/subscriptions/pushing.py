"""Endpoints as subscribers: each is interested in one tenant's events, and its handler is a signed POST."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from typing import Any, Final
from uuid import UUID

import msgspec

from tenantry.application import Backoff, Context, Event, Subscriber
from tenantry.errors import EventInvalid, EventUndecodable, PushFailed, PushGone
from tenantry.subscriptions.demand import Demand
from tenantry.subscriptions.handling import NotNow
from tenantry.subscriptions.push_breaker import Breakers
from tenantry.subscriptions.push_delivery import Deliverer
from tenantry.subscriptions.push_endpoint import Order, PushEndpoint
from tenantry.subscriptions.push_endpoints import PushEndpoints
from tenantry.subscriptions.spreading import PUSH_PREFIX
from tenantry.tenants.boundary import CLAIMS, TENANT_EXTENSION

PAUSES: Final = (5, 15, 60, 300, 900, 1800, 3600, 2 * 3600, 4 * 3600, 8 * 3600)
"""Between tries, the last again and again: twelve of them span more than a day."""
ACK_WAIT: Final = 60.0

_decode: Final = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


class Pushing:
    """Follows the endpoints that there are, and delivers."""

    def __init__(self, endpoints: PushEndpoints, deliverer: Deliverer, demand: Demand) -> None:
        self._endpoints = endpoints
        self._deliverer = deliverer
        self._demand = demand
        self._breakers = Breakers()
        self._version: tuple[int, int] | None = None
        self._current: dict[UUID, PushEndpoint] = {}
        self._subscribers: dict[UUID, Subscriber] = {}

    async def start(self) -> None:
        await self._deliverer.start()

    async def stop(self) -> None:
        await self._deliverer.stop()

    async def attend(self) -> None:
        """Learn which endpoints there are by now."""
        version = await self._endpoints.version()
        if version == self._version:
            return
        self._current = {endpoint.id: endpoint for endpoint in await self._endpoints.active()}
        self._version = version
        self._breakers.keep(self._current)
        by_tenant: dict[str, list[Subscriber]] = defaultdict(list)
        subscribers: dict[UUID, Subscriber] = {}
        for endpoint in self._current.values():
            wanted = self._subscriber(endpoint)
            # One that is as it was stays the same: a new secret or address needs no new consumer.
            before = self._subscribers.get(endpoint.id)
            same = before is not None and _without_function(before) == _without_function(wanted)
            subscribers[endpoint.id] = before if before is not None and same else wanted
            by_tenant[endpoint.tenant_id].append(subscribers[endpoint.id])
            self._demand.since[wanted.name] = endpoint.created_at
        self._subscribers = subscribers
        self._demand.subscribe_tenants(by_tenant)

    def _subscriber(self, endpoint: PushEndpoint) -> Subscriber:
        async def deliver(event: Event[Any], context: Context) -> None:
            await self._deliver(endpoint.id, event, context)

        return Subscriber(
            name=service_of(endpoint),
            types=endpoint.types,
            channel=endpoint.channel,
            order="fifo" if endpoint.order == Order.FIFO else "parallel",
            max_in_flight=endpoint.max_in_flight,
            ack_wait=ACK_WAIT,
            retries=endpoint.retries,
            backoff=Backoff(pauses=PAUSES),
            timeout=None,
            batch=1,
            after_last_retry="skip",
            key="subject",
            partition_by=None,
            partitions=1,
            start="now",
            data=msgspec.Raw,
            function=deliver,
            is_async=True,
        )

    async def _deliver(self, id: UUID, event: Event[Any], context: Context) -> None:
        endpoint = self._current.get(id)
        if endpoint is None:
            raise NotNow(1.0)
        breaker, loop = self._breakers.of(id), asyncio.get_running_loop()
        if not breaker.allows(loop.time()):
            raise NotNow(max(breaker.wait_seconds(loop.time()), 0.05))
        try:
            await self._deliverer.deliver(endpoint, event.id, _as_of_tenant(context))
        except PushGone as gone:
            breaker.failed(loop.time())
            await self._endpoints.retire(endpoint, str(gone))
            self._version = None
            raise NotNow(1.0) from gone
        except PushFailed:
            breaker.failed(loop.time())
            raise
        except EventInvalid as problem:
            raise EventUndecodable(str(problem)) from problem
        breaker.succeeded()


def service_of(endpoint: PushEndpoint) -> str:
    """Under which name its events are counted, and its dead letters kept."""
    return f"{PUSH_PREFIX}{endpoint.id.hex[:16]}"


def _without_function(subscriber: Subscriber) -> tuple[Any, ...]:
    return tuple(getattr(subscriber, field) for field in Subscriber.__slots__ if field != "function")


def _as_of_tenant(context: Context) -> bytes:
    """The event as it is stored, unless it says that it is somebody else's."""
    members = _decode(context.payload)
    tenant = msgspec.json.encode(context.tenant)
    if all(bytes(members.get(name, tenant)) == tenant for name in CLAIMS):
        return context.payload
    kept = {name: value for name, value in members.items() if name not in CLAIMS}
    return msgspec.json.encode(kept | {TENANT_EXTENSION: context.tenant})
