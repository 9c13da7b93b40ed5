"""Ingest as its users meet it: the real API, in front of the real servers."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
from nats.js.errors import NotFoundError

from tenantry.nats.connections import connect
from tenantry.tenants.lanes import Lane
from tenantry.tenants.spec import TenantSpec
from tests.api.conftest import Api, api, start_api

__all__ = ["api", "start_api"]

STRUCTURED = "application/cloudevents+json"
BATCH = "application/cloudevents-batch+json"


def event(id: str = "1", **more: Any) -> dict[str, Any]:
    return {"specversion": "1.0", "id": id, "source": "/test", "type": "order.created", "data": {"order": 7}} | more


@dataclass
class Stored:
    """A message of a stream."""

    subject: str
    headers: dict[str, str]
    document: bytes


async def stored(lane: Lane) -> list[Stored]:
    """All that a lane holds."""
    async with connect(lane.broker, "test") as client:
        stream = client.jetstream()
        info = await stream.stream_info(lane.stream)
        found = []
        for sequence in range(info.state.first_seq or 1, info.state.last_seq + 1):
            # A move leaves gaps.
            with suppress(NotFoundError):
                message = await stream.get_msg(lane.stream, sequence)
                found.append(Stored(message.subject or "", message.headers or {}, message.data or b""))
    return [each for each in found if each.subject.startswith(f"{lane.prefix}.")]


@dataclass
class Sender:
    """Somebody who sends events of a tenant."""

    api: Api
    client: httpx.AsyncClient
    tenant: str

    async def lane(self, channel: str = "events") -> Lane:
        return await self.api.administration.lanes.resolve(self.tenant, channel)

    async def send(self, document: Any, **options: Any) -> httpx.Response:
        """One event, or a list of them as a batch."""
        content_type = BATCH if isinstance(document, list) else STRUCTURED
        headers = {"Content-Type": content_type} | options.pop("headers", {})
        return await self.client.post("/v1/events", json=document, headers=headers, **options)

    async def send_bytes(self, body: bytes, content_type: str = STRUCTURED, **headers: str) -> httpx.Response:
        return await self.client.post("/v1/events", content=body, headers={"Content-Type": content_type} | headers)

    async def stored(self, channel: str = "events") -> list[Stored]:
        return await stored(await self.lane(channel))


async def make_sender(api: Api, tenant: str = "acme", **spec: Any) -> Sender:
    await api.administration.put(TenantSpec(id=tenant, **spec), "test")
    return Sender(api, await api.client("events:write", "schemas:write", "schemas:read", tenant=tenant), tenant)


@pytest.fixture
async def acme(api: Api) -> Sender:
    return await make_sender(api)
