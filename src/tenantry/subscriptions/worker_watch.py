"""Watches all workers for those who ask about them now and then, from the first time that somebody asks."""

from __future__ import annotations

import asyncio
from collections import defaultdict

from tenantry.nats.connections import Broker
from tenantry.service import end
from tenantry.subscriptions.gauge import Gauge, Group
from tenantry.subscriptions.roll_reader import Present, RollReader
from tenantry.subscriptions.scaling import Bounds, Decision, Pace, decide


class WorkerWatch:
    def __init__(self, namespace: str, broker: Broker, pace: Pace | None = None) -> None:
        self._namespace = namespace
        self._broker = broker
        self._pace = pace or Pace()
        self._beginning = asyncio.Lock()
        self._reader: RollReader | None = None
        self._watching: asyncio.Task[None] | None = None
        self._gauges: dict[Group, Gauge] = {}

    async def present(self) -> list[Present]:
        return (await self._opened()).present()

    async def decide(self, group: Group, bounds: Bounds) -> Decision:
        """How many workers of a group there should be."""
        await self._opened()
        gauge = self._gauges.get(group)
        return gauge.decide(bounds) if gauge else decide([], bounds)

    async def close(self) -> None:
        if self._watching is not None:
            await end([self._watching])
        if self._reader is not None:
            await self._reader.stop()
        self._reader = self._watching = None

    async def _opened(self) -> RollReader:
        async with self._beginning:
            if self._watching is not None and self._watching.done():
                await self.close()
            if self._reader is None:
                reader = RollReader(self._namespace, self._broker)
                await reader.start()
                self._reader = reader
                self._note(reader)
                self._watching = asyncio.create_task(self._watch(reader), name="worker watch")
            return self._reader

    async def _watch(self, reader: RollReader) -> None:
        reading = asyncio.ensure_future(reader.run())
        try:
            while not reading.done():
                await asyncio.wait([reading], timeout=self._pace.look_seconds)
                self._note(reader)
        finally:
            await end([reading])
            if not reading.cancelled():
                # Looked at, so that asyncio does not complain: who asks next begins anew, and is told.
                reading.exception()

    def _note(self, reader: RollReader) -> None:
        groups: dict[Group, list[Present]] = defaultdict(list)
        for each in reader.present():
            groups[Group.of(each.member)].append(each)
        # A group of which nobody is left begins anew if somebody comes.
        self._gauges = {group: self._gauges.get(group) or Gauge(self._pace) for group in groups}
        for group, members in groups.items():
            self._gauges[group].note(members)
