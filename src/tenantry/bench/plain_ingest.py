"""An ordinary endpoint for events, as one writes it with FastAPI and nats-py, served like the API of Tenantry.

It checks that an event has its attributes, publishes it with a message id, and waits for the acknowledgement. It knows
no keys, limits or tenants: whoever asks names the stream.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime
from typing import Any

import nats
import uvicorn
from fastapi import FastAPI
from nats.js import JetStreamContext
from pydantic import BaseModel


class Event(BaseModel):
    specversion: str
    id: str
    source: str
    type: str
    time: datetime | None = None
    data: Any = None


class Server:
    streams: JetStreamContext


server = Server()


@asynccontextmanager
async def lifespan(_: FastAPI) -> AsyncIterator[None]:
    client = await nats.connect(os.environ["NATS_URL"], user_credentials=os.environ["NATS_CREDS"])
    server.streams = client.jetstream()
    yield
    await client.drain()


app = FastAPI(lifespan=lifespan)


@app.post("/streams/{stream}/events", status_code=202)
async def send_event(stream: str, event: Event) -> dict[str, Any]:
    ack = await publish(stream, event)
    return {"id": event.id, "duplicate": bool(ack.duplicate)}


@app.post("/streams/{stream}/batches", status_code=202)
async def send_batch(stream: str, events: list[Event]) -> dict[str, Any]:
    acks = await asyncio.gather(*(publish(stream, event) for event in events))
    return {"ids": [event.id for event in events], "duplicates": sum(bool(ack.duplicate) for ack in acks)}


async def publish(stream: str, event: Event) -> Any:
    return await server.streams.publish(
        f"plain.{stream}.{event.type}", event.model_dump_json().encode(), headers={"Nats-Msg-Id": event.id}
    )


if __name__ == "__main__":
    uvicorn.run(
        app,
        port=int(sys.argv[1]),
        http="httptools",
        loop="asyncio",
        access_log=False,
        log_level="warning",
        backlog=2048,
    )
