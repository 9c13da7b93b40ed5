"""A publisher for each broker that is needed: the platform's, and one for each tenant with an account of its own."""

from __future__ import annotations

import asyncio
from typing import Final

from tenantry.ingest.publisher import ANSWER_SECONDS, Publisher
from tenantry.nats.connections import Broker
from tenantry.service import end

IDLE_SECONDS: Final = 60.0
SWEEP_SECONDS: Final = 5.0


class Publishers:
    def __init__(
        self, platform: Broker, *, answer_seconds: float = ANSWER_SECONDS, idle_seconds: float = IDLE_SECONDS
    ) -> None:
        self._platform = platform
        self._answer_seconds = answer_seconds
        self._idle_seconds = idle_seconds
        self._open: dict[Broker, Publisher] = {}
        self._sweeping: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        return len(self._open)

    def start(self) -> None:
        self.of(self._platform)
        self._sweeping = asyncio.create_task(self._sweep(), name="ingest connections")

    async def stop(self) -> None:
        if self._sweeping:
            await end([self._sweeping])
        for publisher in self._open.values():
            await publisher.close()
        self._open.clear()

    def of(self, broker: Broker) -> Publisher:
        """Connected, or about to be."""
        found = self._open.get(broker)
        if found is None:
            name = "ingest" if broker == self._platform else "ingest for a tenant"
            found = self._open[broker] = Publisher(broker, name, answer_seconds=self._answer_seconds)
            found.used_at = asyncio.get_running_loop().time()
        return found

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(min(SWEEP_SECONDS, self._idle_seconds))
            last = asyncio.get_running_loop().time() - self._idle_seconds
            for broker, publisher in list(self._open.items()):
                if broker != self._platform and publisher.is_idle and publisher.used_at < last:
                    del self._open[broker]
                    await publisher.close()
