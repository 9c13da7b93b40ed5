"""Events that are handled once more: beside the live ones, through a consumer of their own, or by moving back.

How far it is, and how far it goes, is on record for each part of a tenant's events: whoever takes over goes on there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final
from uuid import UUID

import msgspec
from psycopg.types.json import Jsonb

from tenantry.errors import BrokerError, JetStreamRefused
from tenantry.nats.jetstream import Config, JetStream
from tenantry.postgres.pool import Pool
from tenantry.postgres.queries import SqlFolder
from tenantry.subscriptions.database import PATIENCE_SECONDS
from tenantry.subscriptions.durables import ensure_durable
from tenantry.subscriptions.holding import Holding
from tenantry.subscriptions.intake import Intake
from tenantry.subscriptions.spreading import Partition
from tenantry.telemetry import signal

FAILED = signal(
    "subscriptions.replay_failed",
    "A replay cannot go on; it is tried again.",
    "tenant",
    "service",
    "reason",
    level="warning",
)

_NOT_THAT_FAR_BACK: Final = 10204

_sql = SqlFolder("tenantry.subscriptions")


class Span(msgspec.Struct, omit_defaults=True):
    """Part of a replay, of one part of the events."""

    first: int = 0
    until: int = 0
    """The last sequence that is wanted."""
    at: int = 0
    """The last sequence that is done."""
    is_begun: bool = False
    is_over: bool = False


class Job(msgspec.Struct):
    id: UUID
    kind: str
    service: str
    tenant_id: str
    request: dict[str, Any]
    state: str
    parts: int
    progress: dict[str, Span]


class Replays:
    """Those of the partitions that a worker holds."""

    def __init__(self, holdings: Mapping[Partition, Holding], pool: Pool) -> None:
        self._holdings = holdings
        self._pool = pool
        self._running: dict[tuple[UUID, Partition], Intake] = {}
        self._steps: dict[tuple[UUID, Partition], asyncio.Task[None]] = {}

    async def attend(self) -> None:
        async with self._pool.connection(PATIENCE_SECONDS) as connection:
            rows = await _sql.fetch_all(
                connection, "open_replays", {"services": list({each.service for each in self._holdings})}
            )
        for row in rows:
            job = msgspec.convert(row, Job)
            for part in range(job.parts):
                holding = self._holdings.get(Partition(job.service, job.tenant_id, part))
                span = job.progress.get(str(part)) or Span()
                if holding is None or span.is_over or (job.id, holding.partition) in self._steps:
                    continue
                # One that has to wait for a handler must not keep others waiting.
                key = (job.id, holding.partition)
                step = self._steps[key] = asyncio.create_task(self._step(job, holding, span), name="replay")
                step.add_done_callback(lambda _, key=key: self._steps.pop(key, None))  # type: ignore[misc]

    async def _step(self, job: Job, holding: Holding, span: Span) -> None:
        if holding.intake is None or holding.is_closing:
            return
        try:
            await self._advance(job, holding, holding.intake, span)
            await self._record(job, holding.partition.part, span)
        except Exception as problem:
            FAILED.emit(tenant=job.tenant_id, service=job.service, reason=f"{type(problem).__name__}: {problem}")

    def drop(self, holding: Holding) -> None:
        """It is not ours any more: whoever has it goes on."""
        for key in [key for key in self._steps if key[1] == holding.partition]:
            self._steps[key].cancel()
        for key in [key for key in self._running if key[1] == holding.partition]:
            self._running.pop(key).close()
        holding.replays.clear()

    async def _advance(self, job: Job, holding: Holding, live: Intake, span: Span) -> None:
        if not span.first:
            await self._measure(job, live, span)
        if job.kind == "rewind":
            await self._rewind(job, holding, live, span)
        else:
            await self._replay(job, holding, live, span)

    async def _measure(self, job: Job, live: Intake, span: Span) -> None:
        """From where to where: up to where the service was, unless an end was named."""
        jetstream, stream = live.jetstream, live.stream
        state = await jetstream.consumer(stream, live.consumer)
        if state is None:
            raise BrokerError(f"there is no consumer {live.consumer} on stream {stream}")
        span.until = int(state["ack_floor"]["stream_seq"])
        if job.request.get("to"):
            end = await jetstream.sequence_at(stream, datetime.fromisoformat(job.request["to"]))
            span.until = min(span.until, end - 1) if end else span.until
        if job.request.get("from"):
            begin = await jetstream.sequence_at(stream, datetime.fromisoformat(job.request["from"]))
            # Nothing has been stored since then.
            span.first = begin or span.until + 1
        else:
            span.first = int(job.request["from_sequence"])
        span.at = span.first - 1

    async def _replay(self, job: Job, holding: Holding, live: Intake, span: Span) -> None:
        key = (job.id, holding.partition)
        intake = self._running.get(key)
        name = holding.lane.consumer_name(f"{job.service}~{job.id.hex[:12]}~{holding.partition.part}")
        is_over = job.state == "cancelling" or span.first > span.until
        if intake is not None:
            span.at = max(span.at, min(intake.reached, span.until))
            if is_over:
                await intake.hush()
                await intake.until_empty()
            elif not intake.is_exhausted:
                return
            self._close(key, holding, intake)
        elif not is_over:
            intake = self._running[key] = await _open(live, name, span)
            holding.replays.append(intake)
            return
        await live.jetstream.delete_consumer(live.stream, name)
        span.is_over = True
        if job.state != "cancelling":
            span.at = max(span.at, span.until)

    def _close(self, key: tuple[UUID, Partition], holding: Holding, intake: Intake) -> None:
        self._running.pop(key, None)
        intake.close()
        if intake in holding.replays:
            holding.replays.remove(intake)

    async def _rewind(self, job: Job, holding: Holding, live: Intake, span: Span) -> None:
        """Moved back, events come again as live ones; it is over when the service is where it was."""
        if job.state == "cancelling":
            if span.is_begun:
                await self._reset(holding, live, span.until + 1)
            span.is_over = True
        elif not span.is_begun:
            if span.first <= span.until:
                await self._reset(holding, live, span.first)
            span.is_begun = True
        else:
            state = await live.jetstream.consumer(live.stream, live.consumer)
            if state is not None:
                span.at = max(span.at, min(int(state["ack_floor"]["stream_seq"]), span.until))
        if span.at >= span.until:
            span.is_over = True

    async def _reset(self, holding: Holding, live: Intake, sequence: int) -> None:
        async with holding.standing_still():
            await _move_consumer(live.jetstream, live.stream, live.consumer, sequence)
            holding.handled.clear()

    async def _record(self, job: Job, part: int, span: Span) -> None:
        said = {
            "id": job.id,
            "part": str(part),
            "span": Jsonb(msgspec.to_builtins(span)),
            "parts": job.parts,
        }
        async with self._pool.connection(PATIENCE_SECONDS) as connection, connection.transaction():
            await _sql.execute(connection, "record_span", said)
            await _sql.execute(connection, "sum_spans", said)


async def _open(live: Intake, name: str, span: Span) -> Intake:
    found = await live.jetstream.consumer(live.stream, live.consumer)
    if found is None:
        raise BrokerError(f"there is no consumer {live.consumer} on stream {live.stream}")
    config: Config = dict(found["config"])
    config.pop("opt_start_time", None)
    config |= {
        "name": name,
        "durable_name": name,
        "deliver_policy": "by_start_sequence",
        "opt_start_seq": max(span.first, 1),
    }
    state, is_new = await ensure_durable(live.jetstream, live.stream, config)
    intake = live.beside(name, span.until)
    if not is_new:
        state = await intake.reclaim()
    intake.open(state)
    return intake


async def _move_consumer(jetstream: JetStream, stream: str, consumer: str, sequence: int) -> None:
    try:
        await jetstream.reset_consumer(stream, consumer, sequence)
    except JetStreamRefused as refused:
        if refused.err_code != _NOT_THAT_FAR_BACK:
            raise
        # It began later than that, as it does after a move: only another one can begin before.
        found = await jetstream.consumer(stream, consumer)
        if found is None:
            raise
        config: Config = dict(found["config"])
        config.pop("opt_start_time", None)
        await jetstream.delete_consumer(stream, consumer)
        await jetstream.create_consumer(
            stream, config | {"deliver_policy": "by_start_sequence", "opt_start_seq": sequence}
        )
