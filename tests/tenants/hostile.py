"""A tenant that tries everything its credentials might let it do to a neighbour."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import msgspec
from nats.aio.client import Client, RawCredentials
from nats.aio.msg import Msg

import nats_bulk
from nats_bulk import Credentials, Message
from tenantry.nats.claims import format_credentials
from tenantry.nats.connections import connect_bulk
from tenantry.tenants.administration import Administration
from tenantry.tenants.lanes import Lane
from tenantry.tenants.spec import TenantSpec

SECRET = b'{"secret": "of globex"}'
EVENTS = 5
PATIENCE = 10.0


@dataclass
class Neighbours:
    """The one who attacks, and the one whom nothing must happen to."""

    administration: Administration
    secret: Credentials
    own: Lane
    other: Lane

    @property
    def url(self) -> str:
        return self.administration.lanes.platform.url

    async def state_of_other(self) -> dict[str, Any]:
        """All that an attack could change, as the server has it."""
        administration, lane = self.administration, self.other
        async with administration.backbone.jetstream(lane.broker) as jetstream:
            stream = await jetstream.stream(lane.stream)
            assert stream is not None
            last = await jetstream.last_sequence(lane.stream, lane.subjects)
            name = lane.consumer_name("billing")
            consumer = await jetstream.consumer(lane.stream, name)
            assert consumer is not None
        tenant = await administration.registry.get(lane.tenant)
        return {
            "config": stream["config"],
            "last": last,
            "events": await asyncio.to_thread(self.read_other),
            "consumer": {field: consumer[field] for field in ("config", "ack_floor", "num_pending", "num_ack_pending")},
            "account": await administration.backbone.accounts.lookup(administration.lanes.account_key(tenant).public),
        }

    def read_other(self) -> list[tuple[int, str, bytes]]:
        with connect_bulk(self.other.broker, "check") as connection:
            last = msgspec.json.decode(connection.request(f"$JS.API.STREAM.INFO.{self.other.stream}", b""))
            return [
                row
                for batch in nats_bulk.read_range(connection, self.other.stream, 1, last["state"]["last_seq"])
                for row in zip(batch.sequences, batch.subjects, batch.payloads, strict=True)
                if row[1].startswith(self.other.prefix + ".")
            ]

    def publish_for_other(self, *ids: str) -> nats_bulk.PublishResult:
        return self.publish(self.other, SECRET, *ids)

    def publish(self, lane: Lane, payload: bytes, *ids: str, type: str = "order.created") -> nats_bulk.PublishResult:
        """As the platform does it."""
        with connect_bulk(lane.broker, "platform") as connection:
            messages = [Message(f"{lane.prefix}.{type}", payload, lane.message_id(id)) for id in ids]
            result = nats_bulk.publish(connection, messages)
            result.raise_for_errors()
            return result


async def settle_neighbours(administration: Administration, tier: str) -> Neighbours:
    for tenant in ("acme", "globex"):
        await administration.put(TenantSpec(id=tenant, tier=tier, overrides={"payload": "64KiB"}), "test")
        await administration.credentials.issue(tenant, "test", consumer="billing")
    _, secret = await administration.credentials.issue("acme", "test", consumer="billing")
    own = await administration.lanes.resolve("acme", "events")
    other = await administration.lanes.resolve("globex", "events")
    neighbours = Neighbours(administration, secret, own, other)
    neighbours.publish_for_other(*(f"order-{number}" for number in range(EVENTS)))
    return neighbours


@dataclass
class Attacker:
    """A raw client that remembers what the server said to it, and all that it ever got to hear."""

    client: Client
    errors: list[str] = field(default_factory=list)
    heard: list[Msg] = field(default_factory=list)

    async def listen(self, subject: str, queue: str = "") -> None:
        async def hear(message: Msg) -> None:
            self.heard.append(message)

        await self.client.subscribe(subject, queue, cb=hear)

    async def say(self, subject: str, payload: bytes = b"", reply: str = "", **headers: str) -> None:
        await self.client.publish(subject, payload, reply=reply, headers=dict(headers) or None)

    async def ask(self, subject: str, payload: bytes = b"") -> None:
        """Ask, and hear all the answers."""
        inbox = self.client.new_inbox()
        answers: asyncio.Queue[Msg] = asyncio.Queue()
        await self.client.subscribe(inbox, cb=answers.put)
        await self.say(subject, payload, inbox)
        self.heard.append(await asyncio.wait_for(answers.get(), PATIENCE))
        await self.flush()
        while not answers.empty():
            self.heard.append(answers.get_nowait())

    async def let_through(self, act: str, subjects: Sequence[str]) -> list[str]:
        """Those of the subjects that the server has not refused us, after all the time that it needs to."""
        deadline = time.monotonic() + PATIENCE
        while True:
            await self.flush()
            left = [each for each in subjects if f'{act} to "{each.lower()}"' not in "".join(self.errors)]
            if not left or time.monotonic() > deadline:
                return left

    async def until_all_is_heard(self, neighbours: Neighbours) -> None:
        """Wait for an event of our own: whatever reached us before it was published has been heard by then."""
        own, arrived = neighbours.own, asyncio.Event()

        async def notice(_: Msg) -> None:
            arrived.set()

        await self.client.subscribe(f"{own.prefix}.sentinel", cb=notice)
        async with asyncio.timeout(PATIENCE):
            while not arrived.is_set():
                await asyncio.to_thread(neighbours.publish, own, b"", uuid.uuid4().hex, type="sentinel")
                with suppress(TimeoutError):
                    await asyncio.wait_for(arrived.wait(), 0.1)

    async def flush(self) -> None:
        await self.client.flush()
        # The client tells of what came before the answer to its flush in tasks of their own.
        for _ in range(5):
            await asyncio.sleep(0)


@asynccontextmanager
async def attack_as(url: str, secret: Credentials) -> AsyncIterator[Attacker]:
    client = Client()
    attacker = Attacker(client)

    async def on_error(problem: Exception) -> None:
        attacker.errors.append(str(problem).lower())

    await client.connect(
        url, user_credentials=RawCredentials(format_credentials(secret)), error_cb=on_error, allow_reconnect=False
    )
    try:
        yield attacker
    finally:
        await client.close()
