"""Reads a stream as it grows, in its order and without holes, and leaves nothing behind.

An ephemeral consumer pushes; should anything of what it sent be missing, or should it fall silent, another takes over
behind what was seen last.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Final, NamedTuple

import nats.errors
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription
from nats.js import JetStreamContext
from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy
from nats.js.errors import APIError, NotFoundError

from tenantry.errors import JetStreamRefused

HEARTBEAT_SECONDS: Final = 1.0
INACTIVE_SECONDS: Final = 10.0
RETRY_SECONDS: Final = 0.5

_CONTROL: Final = "100"


class Stored(NamedTuple):
    """A message as the stream has it."""

    sequence: int
    subject: str
    time: datetime
    payload: bytes


@dataclass(frozen=True, slots=True)
class Start:
    """Where to begin: at a moment, else at a sequence."""

    sequence: int = 1
    time: datetime | None = None


async def follow(client: Client, stream: str, subjects: str, start: Start) -> AsyncGenerator[Stored]:
    """What is published to these subjects, for as long as the stream is there."""
    jetstream = client.jetstream()
    while True:
        inbox = client.new_inbox()
        subscription = await client.subscribe(inbox)
        name = ""
        try:
            consumer = await jetstream.add_consumer(stream, _config(inbox, subjects, start))
            name = consumer.name
            async for message in _in_order(subscription):
                metadata = message.metadata
                start = Start(sequence=metadata.sequence.stream + 1)
                yield Stored(metadata.sequence.stream, message.subject, metadata.timestamp, message.data)
        except NotFoundError:
            return
        except (APIError, nats.errors.Error) as problem:
            if isinstance(problem, APIError) and (problem.code or 0) < 500:
                what = f"to read the stream {stream}"
                raise JetStreamRefused(
                    what, problem.code or 0, problem.err_code or 0, problem.description or ""
                ) from None
            await asyncio.sleep(RETRY_SECONDS)
        finally:
            await _let_go(jetstream, subscription, stream, name)


async def count_from(client: Client, stream: str, subjects: str, sequence: int) -> int:
    """How many messages with these subjects there are from a sequence on."""
    config = ConsumerConfig(
        filter_subject=subjects,
        deliver_policy=DeliverPolicy.BY_START_SEQUENCE,
        opt_start_seq=sequence,
        ack_policy=AckPolicy.NONE,
        mem_storage=True,
        num_replicas=1,
        inactive_threshold=INACTIVE_SECONDS,
    )
    jetstream = client.jetstream()
    consumer = await jetstream.add_consumer(stream, config)
    with suppress(APIError, nats.errors.Error):
        await jetstream.delete_consumer(stream, consumer.name)
    return consumer.num_pending or 0


async def next_sequence(client: Client, stream: str) -> int:
    """What the next message of a stream will have."""
    return (await client.jetstream().stream_info(stream)).state.last_seq + 1


async def sequence_of_last(client: Client, stream: str, subjects: str, count: int) -> int:
    """From which sequence on there are so many messages with these subjects, or as many as there are."""
    state = (await client.jetstream().stream_info(stream)).state
    first, last = state.first_seq, max(state.last_seq - count + 1, state.first_seq)
    # If there are no other subjects and no holes, this is it.
    guess = last
    while first < last:
        if await count_from(client, stream, subjects, guess) >= count:
            first = guess
        else:
            last = guess - 1
        guess = (first + last + 1) // 2
    return first


def _config(inbox: str, subjects: str, start: Start) -> ConsumerConfig:
    return ConsumerConfig(
        filter_subject=subjects,
        deliver_policy=DeliverPolicy.BY_START_TIME if start.time else DeliverPolicy.BY_START_SEQUENCE,
        opt_start_time=start.time,
        opt_start_seq=None if start.time else max(start.sequence, 1),
        deliver_subject=inbox,
        ack_policy=AckPolicy.NONE,
        max_deliver=1,
        mem_storage=True,
        num_replicas=1,
        flow_control=True,
        idle_heartbeat=HEARTBEAT_SECONDS,
        inactive_threshold=INACTIVE_SECONDS,
    )


async def _in_order(subscription: Subscription) -> AsyncIterator[Msg]:
    """The messages of a consumer, up to the first that is missing."""
    last = 0
    while True:
        try:
            message = await subscription.next_msg(timeout=3 * HEARTBEAT_SECONDS)
        except nats.errors.TimeoutError:
            return
        headers = message.headers or {}
        if headers.get("Status") == _CONTROL:
            if message.reply:
                await message.respond(b"")
            elif headers.get("Nats-Last-Consumer", str(last)) != str(last):
                return
            continue
        if message.metadata.sequence.consumer != last + 1:
            return
        last += 1
        yield message


async def _let_go(jetstream: JetStreamContext, subscription: Subscription, stream: str, consumer: str) -> None:
    """What cannot be deleted now goes by itself, as nobody listens to it."""
    with suppress(APIError, nats.errors.Error):
        await subscription.unsubscribe()
        if consumer:
            await jetstream.delete_consumer(stream, consumer)
