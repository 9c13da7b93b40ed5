"""NATS as a service: nothing that starts after it has to wonder whether JetStream is there."""

from __future__ import annotations

from collections.abc import Callable

import nats.errors
import nats.js.errors
from nats.js.api import AccountInfo

from tenantry.errors import BrokerRefused
from tenantry.nats.connections import Broker, connect
from tenantry.service import forever


async def require_jetstream(broker: Broker) -> tuple[str, AccountInfo]:
    """The server's version and what JetStream has of ours; raise if it cannot be used."""
    async with connect(broker, "tenantry-check") as client:
        version = client.connected_server_version
        try:
            info = await client.jetstream().account_info()
        except (nats.js.errors.Error, nats.errors.Error, TimeoutError) as problem:
            raise BrokerRefused(
                f"NATS answers, but JetStream does not: {problem}; turn it on, for the server and for this account"
            ) from problem
        return f"{version.major}.{version.minor}.{version.patch}", info


class Reach:
    """Makes sure, before others start, that the broker can be reached and used."""

    name = "nats"

    def __init__(self, broker: Callable[[], Broker]) -> None:
        self._broker = broker

    async def start(self) -> None:
        await require_jetstream(self._broker())

    async def run(self) -> None:
        await forever()

    async def stop(self) -> None:
        pass

    def kill(self) -> None:
        pass
