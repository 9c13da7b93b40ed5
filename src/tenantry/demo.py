"""Sample tenants with load: three quiet ones and a noisy one, each in a NATS account and stream of its own.

What to look at: the noisy tenant's thousands of events a second leave the others' acknowledgements as quick as before.
"""

from __future__ import annotations

import asyncio
import itertools
import time
import uuid
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from statistics import quantiles
from typing import Any, Final, TypeVar

import msgspec
from nats.js.api import DiscardPolicy, StreamConfig
from nats.js.errors import BadRequestError

import nats_bulk
from tenantry import event
from tenantry.embedded.platform import EmbeddedPlatform
from tenantry.errors import ConfigError
from tenantry.nats import claims
from tenantry.nats.accounts import AccountServer
from tenantry.nats.connections import Broker, connect, connect_bulk
from tenantry.nats.keys import Key, Role

CHANNEL: Final = "events"
TYPES: Final = ("order.created", "order.paid", "order.shipped")
TICK_SECONDS: Final = 0.1
RETENTION_SECONDS: Final = 3600
STREAM_BYTES: Final = 256 << 20
LIMITS: Final = claims.AccountLimits(
    disk_storage=2 * STREAM_BYTES, streams=4, consumer=100, conn=50, leaf=0, max_bytes_required=True
)

Result = TypeVar("Result")


@dataclass(slots=True)
class SampleTenant:
    """One tenant of the demo and what has become of its events."""

    name: str
    rate: int
    connection: nats_bulk.Connection | None = None
    published: int = 0
    read: int = 0
    next_to_read: int = 1
    newest: int = 0
    ack_seconds: deque[float] = field(default_factory=lambda: deque(maxlen=200))

    @property
    def lag(self) -> int:
        return self.newest - self.next_to_read + 1

    def summary(self) -> dict[str, Any]:
        p50, p99 = _percentiles(self.ack_seconds)
        return {"published": self.published, "read": self.read, "lag": self.lag, "ack_ms": {"p50": p50, "p99": p99}}


class Demo:
    """Provisions the sample tenants, publishes for them, and reads back what they published."""

    name = "demo"

    def __init__(self, platform: EmbeddedPlatform) -> None:
        if platform.nats is None:
            raise ConfigError(
                "the demo needs the embedded NATS, to give each tenant an account; "
                "leave out --nats-url, and unset NATS_URL and NATS_CREDS"
            )
        self._platform = platform
        self._server = platform.nats
        self._numbers = itertools.count(1)
        self.tenants = [
            SampleTenant("acme", 20),
            SampleTenant("globex", 20),
            SampleTenant("initech", 20),
            SampleTenant("noisy", 5000),
        ]

    async def start(self) -> None:
        server = self._server
        async with connect(server.system, "demo") as system:
            accounts = AccountServer(system, server.identity.operator_signing)
            for tenant in self.tenants:
                key = self._account_key(tenant.name)
                operator = server.identity.operator_signing
                await accounts.push(claims.account_claims(operator, key.public, tenant.name, limits=LIMITS))
                broker = Broker(server.url, claims.issue_user(key, f"{tenant.name}-demo"))
                await self._provision_stream(broker, tenant)
                tenant.connection = connect_bulk(broker, f"demo-{tenant.name}", reconnect_for=2.0)

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            for tenant in self.tenants:
                group.create_task(self._drive(tenant))

    async def stop(self) -> None:
        for tenant in self.tenants:
            if tenant.connection:
                # What was published last has not been read yet, if the broker is still there to read from.
                tenant.connection.reconnect_for = 0.0
                with suppress(nats_bulk.BulkError):
                    await _in_thread(partial(self._read, tenant))
        self.kill()

    def kill(self) -> None:
        for tenant in self.tenants:
            if tenant.connection:
                # Also makes a publish that is under way give up instead of trying again.
                tenant.connection.close()

    def _account_key(self, tenant: str) -> Key:
        return Key(self._platform.directory.secret(f"demo-{tenant}.nk", lambda: Key.generate(Role.ACCOUNT).seed))

    async def _provision_stream(self, broker: Broker, tenant: SampleTenant) -> None:
        config = StreamConfig(
            name=_stream(tenant.name),
            subjects=[f"{self._platform.settings.app}.tenants.{tenant.name}.{CHANNEL}.>"],
            max_bytes=STREAM_BYTES,
            max_age=RETENTION_SECONDS,
            discard=DiscardPolicy.OLD,
            allow_direct=True,
        )
        async with connect(broker, f"demo-{tenant.name}") as client:
            streams = client.jetstream()
            try:
                info = await streams.add_stream(config)
            except BadRequestError:
                # An earlier run made it with other settings.
                info = await streams.update_stream(config)
            # What an earlier run published is not this run's to read.
            tenant.next_to_read = info.state.last_seq + 1
            tenant.newest = info.state.last_seq

    async def _drive(self, tenant: SampleTenant) -> None:
        while True:
            started = time.monotonic()
            await _in_thread(partial(self._publish, tenant))
            await _in_thread(partial(self._read, tenant))
            await asyncio.sleep(max(0.0, started + TICK_SECONDS - time.monotonic()))

    def _publish(self, tenant: SampleTenant) -> None:
        assert tenant.connection is not None
        messages = [self._message(tenant.name) for _ in range(max(1, round(tenant.rate * TICK_SECONDS)))]
        started = time.perf_counter()
        result = nats_bulk.publish(tenant.connection, messages)
        tenant.ack_seconds.append(time.perf_counter() - started)
        result.raise_for_errors()
        tenant.published += len(messages)
        tenant.newest = max(result.sequences)

    def _message(self, tenant: str) -> nats_bulk.Message:
        number = next(self._numbers)
        sample = event.Event(
            id=str(uuid.uuid4()),
            source="/demo",
            type=TYPES[number % len(TYPES)],
            time=event.now(),
            data=msgspec.Raw(msgspec.json.encode({"order": number, "total": number % 500})),
        )
        subject = event.Subject.build(self._platform.settings.app, tenant, CHANNEL, sample.type)
        return nats_bulk.Message(str(subject), event.encode(sample), sample.id)

    def _read(self, tenant: SampleTenant) -> None:
        assert tenant.connection is not None
        for batch in nats_bulk.read_range(tenant.connection, _stream(tenant.name), tenant.next_to_read, tenant.newest):
            tenant.read += len(batch)
            tenant.next_to_read = batch.sequences[-1] + 1


def _stream(tenant: str) -> str:
    return f"TENANT_{tenant.upper()}_{CHANNEL.upper()}"


async def _in_thread(work: Callable[[], Result]) -> Result:
    """Run blocking work; when cancelled, let it finish first, for it uses a connection that is about to be closed."""
    working = asyncio.ensure_future(asyncio.to_thread(work))
    try:
        return await asyncio.shield(working)
    except asyncio.CancelledError:
        await asyncio.gather(working, return_exceptions=True)
        raise


def _percentiles(seconds: deque[float]) -> tuple[float, float]:
    if len(seconds) < 2:
        return 0.0, 0.0
    cuts = quantiles(seconds, n=100)
    return round(cuts[49] * 1000, 2), round(cuts[98] * 1000, 2)
