"""What tests of the relay do: make tenants, emit, let a relay carry, and see what arrived."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import psycopg

import nats_bulk
from tenantry.config import Settings
from tenantry.nats.connections import connect_bulk
from tenantry.outbox import emit_many
from tenantry.outbox.service import RelayService
from tenantry.tenants.administration import Administration
from tenantry.tenants.roster import Roster
from tenantry.tenants.spec import TenantSpec

NO_LIMIT = {"publish_rate": 1_000_000, "publish_burst": 1_000_000, "storage": -1}
PATIENCE = 60.0


class Carrying:
    def __init__(self, administration: Administration) -> None:
        self.administration = administration
        self.roster = Roster(administration.registry, administration.lanes)

    @property
    def url(self) -> str:
        return str(self.administration.pool.conninfo)

    async def tenant(self, name: str, tier: str = "stream", **overrides: Any) -> str:
        await self.administration.put(TenantSpec(id=name, tier=tier, overrides=NO_LIMIT | overrides), "test")
        return name

    async def emit(self, tenant: str, *numbers: int, channel: str = "events", size: int = 0) -> None:
        """Events with these numbers as their ids, in one transaction."""
        events = [
            {
                "tenant": tenant,
                "channel": channel,
                "type": "order.created",
                "id": str(number),
                "data": {"n": number, "x": "x" * size},
            }
            for number in numbers
        ]
        async with self.administration.pool.connection() as connection, connection.transaction():
            await emit_many(connection, events)

    @asynccontextmanager
    async def relay(self, **settings: Any) -> AsyncIterator[RelayService]:
        await self.roster.start()
        following = asyncio.create_task(self.roster.run())
        relay = RelayService(self.url, self.roster, self.administration.lanes, Settings(**settings))
        await relay.start()
        try:
            yield relay
        finally:
            await relay.stop()
            following.cancel()

    async def arrived(self, tenant: str, channel: str = "events") -> list[str]:
        """The ids of the events in a lane, in order."""
        return [event["id"] for _, _, event in await self.messages(tenant, channel)]

    async def messages(self, tenant: str, channel: str = "events") -> list[tuple[str, dict[str, list[str]], Any]]:
        lane = await self.administration.lanes.resolve(tenant, channel)

        def read() -> list[tuple[str, dict[str, list[str]], Any]]:
            with connect_bulk(lane.broker, "test") as connection:
                answer = json.loads(connection.request(f"$JS.API.STREAM.INFO.{lane.stream}", b""))
                state = answer["state"]
                if not state["messages"]:
                    return []
                return [
                    (subject, nats_bulk.parse_headers(header), json.loads(payload))
                    for batch in nats_bulk.read_range(connection, lane.stream, state["first_seq"], state["last_seq"])
                    for subject, header, payload in zip(batch.subjects, batch.headers, batch.payloads, strict=True)
                    if subject.startswith(f"{lane.prefix}.")
                ]

        return await asyncio.to_thread(read)

    async def until_arrived(self, tenant: str, *numbers: int, channel: str = "events") -> None:
        expected = [str(number) for number in numbers]
        await until(lambda: self.arrived(tenant, channel), lambda ids: ids == expected)

    async def states(self, tenant: str) -> list[tuple[str, str, int, str | None]]:
        """Id, state, attempts and last error of each event, as the view has them."""
        return await self.ask(
            """select event_id, state, attempts, last_error from tenantry.outbox_events
               where tenant_id = %s order by ticket, id""",
            tenant,
        )

    async def ask(self, question: str, *parameters: object) -> list[Any]:
        async with self.administration.pool.connection() as connection:
            cursor = await connection.execute(question, parameters)
            return await cursor.fetchall()

    def connect(self) -> psycopg.Connection[Any]:
        return psycopg.connect(self.url)


async def until(ask: Callable[[], Any], is_so: Callable[[Any], bool]) -> Any:
    """Ask until the answer is as it should be; fail with the last answer if it never is."""
    deadline = asyncio.get_running_loop().time() + PATIENCE
    while True:
        answer = await ask()
        if is_so(answer):
            return answer
        assert asyncio.get_running_loop().time() < deadline, (
            f"it did not come to that: {str(answer)[:300]} … {str(answer)[-300:]}"
        )
        await asyncio.sleep(0.02)
