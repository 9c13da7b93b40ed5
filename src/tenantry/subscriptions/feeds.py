"""One feed for each account that is read."""

from __future__ import annotations

from tenantry.nats.connections import Broker
from tenantry.nats.feed import Feed
from tenantry.nats.jetstream import JetStream


class Feeds:
    def __init__(self, name: str) -> None:
        self._name = name
        self._feeds: dict[Broker, tuple[Feed, JetStream]] = {}

    def of(self, broker: Broker) -> tuple[Feed, JetStream]:
        """Connecting begins when it is first asked for."""
        if broker not in self._feeds:
            feed = Feed(broker, self._name)
            self._feeds[broker] = feed, JetStream(feed)
        return self._feeds[broker]

    async def close_unused(self) -> None:
        for broker, (feed, _) in list(self._feeds.items()):
            if not feed.is_used:
                del self._feeds[broker]
                await feed.close()

    async def close(self) -> None:
        while self._feeds:
            _, (feed, _) = self._feeds.popitem()
            await feed.close()
