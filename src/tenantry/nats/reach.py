"""Whether NATS can be reached and used."""

from __future__ import annotations

import nats.errors
import nats.js.errors
from nats.js.api import AccountInfo

from tenantry.errors import BrokerRefused
from tenantry.nats.connections import Broker, connect


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
