"""Moves a tenant to a tier above, while its producers go on publishing.

The new stream copies the old one as its mirror, which keeps every sequence and time. At the cut the old one takes
nothing more, the copy catches up, learns which event ids it must not take twice, and becomes the lane. A producer sees
its publishes unanswered for that moment and repeats them; what is repeated is stored once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any, Final

import nats_bulk
from nats_bulk import Message, parse_headers
from tenantry import event
from tenantry.errors import BrokerError, BrokerUnreachable, ProvisioningFailed, TenantConflict
from tenantry.nats.connections import Broker, connect_bulk
from tenantry.nats.jetstream import Config, JetStream
from tenantry.postgres.locks import Locks
from tenantry.telemetry import signal
from tenantry.tenants.audit import AuditLog
from tenantry.tenants.backbone import Backbone
from tenantry.tenants.door import copy_api, copy_delivery
from tenantry.tenants.lanes import NANOSECONDS, Lane, Lanes, at_tier
from tenantry.tenants.moves import LaneMove, Move, MoveStore, Stage
from tenantry.tenants.pools import Pools
from tenantry.tenants.provisioner import STEP, Provisioner
from tenantry.tenants.registry import Registry
from tenantry.tenants.streams import differences, ensure_stream, require_ours
from tenantry.tenants.tenant import Tenant, Tier

MOVED = signal("tenants.moved", "A tenant was moved to another tier.", "tenant", "tier", "seconds", "error")

POLL_SECONDS: Final = 0.02
CUT_LAG: Final = 1000
"""So many events may the copy still lack when the old stream is closed."""
MARK: Final = "marks"

Progress = Callable[[str, int, int], None]
"""Told a channel, how far its copy is, and how far it has to go."""


@dataclass(frozen=True, slots=True)
class _Crossing:
    """One channel, from its old lane to its new one."""

    record: LaneMove
    origin: Lane
    target: Lane
    config: Config
    """The stream that the target is to be in the end."""

    @property
    def waiting_room(self) -> str:
        """A subject that no producer has; under it, both streams are out of the way of producers."""
        return self.target.prefix.replace(".tenants.", ".moves.", 1)


class Mover:
    def __init__(
        self,
        registry: Registry,
        locks: Locks,
        moves: MoveStore,
        audit: AuditLog,
        lanes: Lanes,
        pools: Pools,
        backbone: Backbone,
        provisioner: Provisioner,
    ) -> None:
        self._registry = registry
        self._locks = locks
        self._moves = moves
        self._audit = audit
        self._lanes = lanes
        self._pools = pools
        self._backbone = backbone
        self._provisioner = provisioner

    def plan(self, tenant: Tenant, to: Tier) -> list[LaneMove]:
        """What would become of each channel."""
        moved = at_tier(tenant, to)
        return [
            LaneMove(
                channel=channel.name,
                from_stream=self._lanes.lane(tenant, channel).stream,
                to_stream=self._lanes.lane(moved, channel).stream,
                pool=channel.pool,
            )
            for channel in tenant.channels
            if not channel.removing
        ]

    async def carry_on(self, tenant: str, progress: Progress = lambda *_: None) -> None:
        """Do all that is left of a tenant's move, from wherever it was left."""
        async with self._locks.hold(f"move/{tenant}"):
            move = await self._moves.unfinished(tenant)
            if move is None:
                return
            with MOVED.span(tenant=tenant, tier=str(move.to_tier)):
                if move.stage == Stage.COPYING:
                    await self._copy(move, progress)
                    move = await self._moves.advance(move, Stage.CUTTING)
                if move.stage == Stage.CUTTING:
                    await self._cut(move)
                    move = await self._switch(move)
                if move.stage == Stage.SWITCHED:
                    await self._erase_old(move)
                    await self._moves.advance(move, Stage.DONE)
        await self._provisioner.converge(tenant)

    async def abandon(self, tenant: str) -> None:
        """Give up a move that is still copying: the copies are erased, and the tenant stays where it is."""
        async with self._locks.hold(f"move/{tenant}"):
            move = await self._moves.unfinished(tenant)
            if move is None:
                return
            if move.stage != Stage.COPYING:
                raise TenantConflict(
                    f"the move of tenant {tenant} is past the point where it could be given up; "
                    f"`tenantry tenant move {tenant}` carries it on"
                )
            found, crossings = await self._crossings(move)
            async with self._backbone.jetstream(crossings[0].target.broker) as target:
                for crossing in crossings:
                    self._step(found, f"abandon {crossing.record.channel}")
                    copy = await target.stream(crossing.target.stream)
                    if copy is not None and copy["config"].get("mirror"):
                        await target.delete_stream(crossing.target.stream)
            await self._moves.advance(move, Stage.ABANDONED)
        await self._provisioner.converge(tenant, again=True)

    async def _crossings(self, move: Move) -> tuple[Tenant, list[_Crossing]]:
        tenant = await self._registry.get(move.tenant_id)
        pools = {record.channel: record.pool for record in move.lanes}
        before, after = at_tier(tenant, move.from_tier), at_tier(tenant, move.to_tier)
        crossings = []
        for record in move.lanes:
            channel = tenant.channel(record.channel)
            assert channel is not None
            crossings.append(
                _Crossing(
                    record,
                    self._lanes.lane(before, channel.in_pool(pools[record.channel])),
                    self._lanes.lane(after, channel),
                    self._lanes.stream_config(after, channel),
                )
            )
        return tenant, crossings

    async def _copy(self, move: Move, progress: Progress) -> None:
        tenant, crossings = await self._crossings(move)
        # Now that the move is on record, the account's claims come with leave to copy.
        await self._provisioner.converge(tenant.id, again=True)
        async with self._backbone.jetstream(crossings[0].target.broker) as target:
            for crossing in crossings:
                self._step(tenant, f"copy {crossing.record.channel}")
                await self._start_copy(target, crossing, self._lanes.copy_token(move.id))
            for crossing in crossings:
                await self._until_copied(target, crossing, CUT_LAG, progress)

    async def _start_copy(self, target: JetStream, crossing: _Crossing, token: str) -> None:
        # With a filter the server names it in the subject by which it asks, and only such subjects are let through.
        mirror: dict[str, Any] = {"name": crossing.origin.stream, "filter_subject": crossing.origin.subjects}
        if crossing.origin.account != crossing.target.account:
            mirror["external"] = {"api": copy_api(token), "deliver": copy_delivery(crossing.origin, token)}
        found = await target.stream(crossing.target.stream)
        if found is None:
            await target.create_stream(_unbounded(crossing.config, subjects=[]) | {"mirror": mirror})
        else:
            require_ours(crossing.config, found["config"])

    async def _until_copied(self, target: JetStream, crossing: _Crossing, lag: int, progress: Progress) -> None:
        """Wait until the copy lacks no more than `lag` sequences."""
        while True:
            wanted = await self._backbone.platform.last_sequence(crossing.origin.stream, crossing.origin.subjects)
            found = await target.stream(crossing.target.stream)
            if found is None:
                raise ProvisioningFailed(f"stream {crossing.target.stream} has gone while it was being filled")
            if problem := (found.get("mirror") or {}).get("error"):
                raise BrokerError(f"stream {crossing.target.stream} cannot copy: {problem.get('description', problem)}")
            progress(crossing.record.channel, min(found["state"]["last_seq"], wanted), wanted)
            if found["state"]["last_seq"] >= wanted - lag:
                return
            await asyncio.sleep(POLL_SECONDS)

    async def _cut(self, move: Move) -> None:
        tenant, crossings = await self._crossings(move)
        async with self._backbone.jetstream(crossings[0].target.broker) as target:
            for crossing in crossings:
                self._step(tenant, f"close {crossing.record.channel}")
                await self._close(crossing)
            for crossing in crossings:
                self._step(tenant, f"take over {crossing.record.channel}")
                await self._take_over(target, crossing)
            await self._push_final_claims(tenant, crossings)
            for crossing in crossings:
                self._step(tenant, f"open {crossing.record.channel}")
                await ensure_stream(target, crossing.config)
                self._step(tenant, f"consumers {crossing.record.channel}")
                await self._copy_consumers(target, crossing)

    async def _close(self, crossing: _Crossing) -> None:
        """From here on the old stream takes nothing from producers, and its end is known."""
        platform = self._backbone.platform
        if crossing.record.pool is not None:
            await self._pools.settle(crossing.record.pool)
        else:
            found = await platform.stream(crossing.origin.stream)
            if found is not None and found["config"]["subjects"] != [crossing.waiting_room]:
                await platform.update_stream(found["config"] | {"subjects": [crossing.waiting_room]})

    async def _take_over(self, target: JetStream, crossing: _Crossing) -> None:
        found = await target.stream(crossing.target.stream)
        assert found is not None
        if not differences(crossing.config, found["config"]):
            # A crash came between this and the record of it; producers may be at it by now.
            return
        marks = f"{crossing.waiting_room}.{MARK}"
        if found["config"].get("mirror"):
            await self._until_copied(target, crossing, 0, lambda *_: None)
            await target.update_stream(_unbounded(crossing.config, subjects=[marks]))
        crossing.record.last = await self._end_of(crossing.origin)
        await self._mark_ids(target, crossing, marks)

    async def _end_of(self, origin: Lane) -> int:
        """The last sequence that the old lane has used, even if that event is gone."""
        if origin.is_shared:
            return await self._backbone.platform.last_sequence(origin.stream, origin.subjects)
        found = await self._backbone.platform.stream(origin.stream)
        return int(found["state"]["last_seq"]) if found else 0

    async def _mark_ids(self, target: JetStream, crossing: _Crossing, subject: str) -> None:
        """Let the new stream know the ids of recent events: a mirror does not learn them.

        Each id is published once more, to a subject that is then purged: the events go, their ids stay known. They use
        up sequences; so many more are used up as it takes to pass all that the old stream has used.
        """
        state = (await target.stream(crossing.target.stream) or {})["state"]
        window = timedelta(seconds=crossing.config["duplicate_window"] / NANOSECONDS)
        first = await self._backbone.platform.sequence_at(crossing.origin.stream, event.now() - window)
        ids = await asyncio.to_thread(partial(_recent_ids, crossing.origin, first, crossing.record.last))
        messages = [Message(subject, b"", id) for id in ids]
        short = crossing.record.last - state["last_seq"] - len(messages)
        messages += [Message(subject, b"", f"{subject}/{number}") for number in range(short)]
        if messages:
            await asyncio.to_thread(partial(_publish, crossing.target.broker, messages))
            await target.purge(crossing.target.stream, subject)
        state = (await target.stream(crossing.target.stream) or {})["state"]
        crossing.record.resumes_at = state["last_seq"] + 1

    async def _push_final_claims(self, tenant: Tenant, crossings: Sequence[_Crossing]) -> None:
        async with self._locks.hold(f"tenant/{tenant.id}"):
            if self._backbone.has_accounts:
                self._step(tenant, "account")
                tenant = await self._registry.get(tenant.id)
                targets = [crossing.target for crossing in crossings]
                await self._provisioner.push_claims(tenant, targets)

    async def _copy_consumers(self, target: JetStream, crossing: _Crossing) -> None:
        """Each durable consumer goes on after the last event it has acknowledged all up to."""
        prefix = crossing.origin.consumer_name("")
        async for consumer in self._backbone.platform.consumers(crossing.origin.stream):
            config: Config = dict(consumer["config"])
            name = config.get("durable_name", "")
            if not name or (crossing.origin.is_shared and not name.startswith(prefix)):
                continue
            service = name.removeprefix(prefix) if crossing.origin.is_shared else name
            config |= {
                "name": crossing.target.consumer_name(service),
                "durable_name": crossing.target.consumer_name(service),
                "deliver_policy": "by_start_sequence",
                "opt_start_seq": consumer["ack_floor"]["stream_seq"] + 1,
            }
            config.pop("opt_start_time", None)
            if crossing.origin.is_shared and config.get("filter_subject") == crossing.origin.subjects:
                config.pop("filter_subject")
            if await target.consumer(crossing.target.stream, config["name"]) is None:
                await target.create_consumer(crossing.target.stream, config)

    async def _switch(self, move: Move) -> Move:
        async with self._registry.change(move.tenant_id) as connection:
            await self._registry.set_tier(connection, move.tenant_id, move.to_tier)
            switched = await self._moves.advance(move, Stage.SWITCHED, connection)
            await self._audit.append(
                connection,
                "reconciler",
                "tenant.moved",
                move.tenant_id,
                before={"tier": move.from_tier},
                after={"tier": move.to_tier, "lanes": switched.describe()["lanes"]},
            )
        return switched

    async def _erase_old(self, move: Move) -> None:
        tenant, crossings = await self._crossings(move)
        for crossing in crossings:
            self._step(tenant, f"erase {crossing.record.channel}")
            await self._provisioner.erase_lane(self._backbone.platform, crossing.origin)

    def _step(self, tenant: Tenant, step: str) -> None:
        STEP.emit(tenant=tenant.id, step=step)


def _unbounded(config: Config, *, subjects: list[str]) -> Config:
    """The stream while it is filled: it listens to no producer, and gives up nothing for want of room."""
    kept = {field: value for field, value in config.items() if field not in ("subjects", "duplicate_window")}
    filling = {"max_bytes": -1, "max_msgs": -1, "discard": "old", "allow_direct": False, "mirror_direct": False}
    listening = {"subjects": subjects, "duplicate_window": config["duplicate_window"]} if subjects else {}
    return kept | filling | listening


def _recent_ids(origin: Lane, first: int, last: int) -> list[str]:
    if not 0 < first <= last:
        return []
    prefix = f"{origin.prefix}."
    ids: list[str] = []
    with _bulk(origin.broker) as connection:
        for batch in nats_bulk.read_range(connection, origin.stream, first, last):
            for subject, headers in zip(batch.subjects, batch.headers, strict=True):
                if headers and subject.startswith(prefix) and (id := parse_headers(headers).get("Nats-Msg-Id")):
                    ids.append(id[0])
    return ids


def _publish(broker: Broker, messages: Sequence[Message]) -> None:
    with _bulk(broker) as connection:
        nats_bulk.publish(connection, messages).raise_for_errors()


@contextmanager
def _bulk(broker: Broker) -> Iterator[nats_bulk.Connection]:
    try:
        with connect_bulk(broker, "tenantry-move") as connection:
            yield connection
    except nats_bulk.BulkError as problem:
        raise BrokerUnreachable(f"event ids could not be carried over: {problem}") from problem
