"""Streams that others provision: their consumers are taken in like all else, and the folder says whose events they are.

There is one consumer for all subscribers of the application. So an event is handled by each of them that wants it, one
after the other, and acknowledged when the last has; if one fails, all are tried again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from concurrent.futures import Executor
from typing import Any, Final
from zlib import crc32

from tenantry.application import Context, Event, Subscriber
from tenantry.event import EVERY_TYPE, type_matcher
from tenantry.nats.connections import Broker
from tenantry.service import forever
from tenantry.subscriptions.demand import Demand, Wanted
from tenantry.subscriptions.reading import EventReader
from tenantry.subscriptions.spreading import ACCOUNTS, Partition
from tenantry.tenants.account_folder import Account
from tenantry.tenants.lanes import Lane

LOOK_SECONDS: Final = 0.05
LARGEST_PART: Final = 0x7FFFFFFF
"""PostgreSQL's."""


class ForeignAccounts:
    """What the accounts directory consumes with."""

    def __init__(
        self,
        subscribers: Iterable[Subscriber],
        demand: Demand,
        threads: Executor,
        given_back: Callable[[Partition], bool],
    ) -> None:
        self._demand = demand
        self._given_back = given_back
        self._subscriber = merge(list(subscribers), threads)

    async def consume(self, account: Account, broker: Broker) -> None:
        """Until it is cancelled, and then until whatever runs of it has ended."""
        number = crc32(f"{account.stream}/{account.consumer}".encode()) & LARGEST_PART
        partition = Partition(ACCOUNTS, account.tenant_id, number)
        lane = Lane(account.tenant_id, account.stream, account.stream, "", broker, "")
        wanted = Wanted(self._subscriber, lane, account, "", 1.0, account.consumer, None)
        self._demand.add(partition, wanted)
        try:
            await forever()
        finally:
            self._demand.remove(partition)
            while not self._given_back(partition):
                await asyncio.sleep(LOOK_SECONDS)


def merge(subscribers: list[Subscriber], threads: Executor) -> Subscriber:
    """One subscriber that does what all of them do."""
    wanting = [(each, type_matcher(each.types), EventReader(each.data)) for each in subscribers]

    async def handle(event: Event[Any], context: Context) -> None:
        for subscriber, wants, reader in wanting:
            if wants(event.type):
                own = reader.read(context.payload, context.tenant, context.channel, context.sequence)
                await _call(subscriber, own, context, threads)

    return Subscriber(
        name=ACCOUNTS,
        types=(EVERY_TYPE,),
        channel="events",
        order="fifo" if any(each.is_fifo for each in subscribers) else "parallel",
        max_in_flight=min((each.max_in_flight for each in subscribers), default=1),
        ack_wait=min((each.ack_wait for each in subscribers), default=30.0),
        retries=max((each.retries for each in subscribers), default=0),
        backoff=max(subscribers, key=lambda each: each.retries).backoff,
        timeout=None,
        batch=1,
        after_last_retry="skip",
        key="subject",
        partition_by=None,
        partitions=1,
        start="first",
        data=None,
        function=handle,
        is_async=True,
    )


async def _call(subscriber: Subscriber, event: Event[Any], context: Context, threads: Executor) -> None:
    given = [event] if subscriber.batch > 1 else event
    own = context.of_service(subscriber.name)
    if not subscriber.is_async:
        await asyncio.get_running_loop().run_in_executor(threads, subscriber.function, given, own)
        return
    async with asyncio.timeout(subscriber.timeout):
        await subscriber.function(given, own)
