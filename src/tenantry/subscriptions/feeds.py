"""One feed for each account that is read."""

from __future__ import annotations

from tenantry.nats.connections import Broker
from tenantry.nats.feed import Feed
from tenantry.nats.jetstream import JetStream


class Feeds:
    def __init__(self, name: str) -> None:
        self._name = name
        self._feeds: dict[Broker, tuple[Feed, JetStream]] = {}
        self._unused: set[Broker] = set()

    def of(self, broker: Broker) -> tuple[Feed, JetStream]:
        """Connecting begins when it is first asked for."""
        self._unused.discard(broker)
        if broker not in self._feeds:
            feed = Feed(broker, self._name)
            self._feeds[broker] = feed, JetStream(feed)
        return self._feeds[broker]

    async def close_unused(self) -> None:
        """Those that were unused the last time as well: one that was just asked for is about to be used."""
        unused = {broker for broker, (feed, _) in self._feeds.items() if not feed.is_used}
        closing = [self._feeds.pop(broker)[0] for broker in unused & self._unused]
        self._unused = unused - self._unused
        for feed in closing:
            await feed.close()

    async def close(self) -> None:
        while self._feeds:
            _, (feed, _) = self._feeds.popitem()
            await feed.close()
