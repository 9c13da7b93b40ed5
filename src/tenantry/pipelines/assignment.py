"""Which lanes each query of a pipeline reads, and from where: decided whenever a query is about to plan a batch.

At that moment its batch before is done, so the position of each lane is exact. That is what makes it safe to give a
lane to another query, or to go on in another stream: who had it leaves it out from now on, and who gets it begins right
after.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Container, Iterator, Mapping
from dataclasses import replace
from typing import Final
from uuid import UUID, uuid4

import psycopg
from psycopg_pool import PoolTimeout

from pyspark_nats import Stream
from pyspark_nats.catalog import HEAVIEST
from tenantry.pipelines.keys import LaneName, key_of
from tenantry.pipelines.progress import STEP, Done, LaneState, Progress
from tenantry.pipelines.read_access import ReadAccess
from tenantry.telemetry import signal
from tenantry.tenants.lanes import Lane
from tenantry.tenants.roster import Roster
from tenantry.tenants.tenant import Status, Tenant

PARKED = signal(
    "pipelines.lane_parked",
    "A pipeline could not take an event, and stopped on that lane; the other lanes go on.",
    "pipeline",
    "tenant",
    "channel",
    "sequence",
    "reason",
    level="error",
)
RESUMED = signal("pipelines.lane_resumed", "A parked lane is read again.", "pipeline", "tenant", "channel", "sequence")
HANDED_OVER = signal(
    "pipelines.lane_handed_over", "Another query reads a lane.", "pipeline", "tenant", "channel", "query", "sequence"
)

SET_ASIDE = signal(
    "pipelines.lane_set_aside",
    "A lane cannot be read, or its table not be written; it is left out for a while, and the others go on.",
    "pipeline",
    "tenant",
    "channel",
    "reason",
    "pause",
    level="error",
)

SHARED: Final = "shared"
FIRST_PAUSE: Final = 1.0
LONGEST_PAUSE: Final = 60.0
REFRESH_SECONDS: Final = 0.5
_AWAY: Final = (psycopg.Error, PoolTimeout)


class Assignment:
    """Of one pipeline, for all of its queries."""

    def __init__(
        self,
        progress: Progress,
        roster: Roster,
        access: ReadAccess,
        *,
        channel: str | None,
        may_be_dedicated: bool,
        most_of_one: float = 1.0,
    ) -> None:
        """`most_of_one` is what part of a batch a tenant can have that shares the query with others."""
        self.progress = progress
        self._roster = roster
        self._access = access
        self._channel = channel
        self._may_be_dedicated = may_be_dedicated
        self._most_of_one = most_of_one
        self._lock = threading.RLock()
        self._states: dict[LaneName, LaneState] = progress.load()
        self._refreshed_at = time.monotonic()
        self._running: set[str] = set()
        self._answers: dict[str, list[Stream]] = {}
        self._aside: dict[LaneName, tuple[float, float]] = {}
        """Until when lanes are left out, and for how long that was."""

    # -- what queries ask -------------------------------------------------------------------------------------------

    def streams_of(self, query: str) -> list[Stream]:
        """What a query reads in the batch that it is about to plan."""
        with self._lock:
            self._refresh()
            changed: dict[LaneName, LaneState] = {}
            found: list[Stream] = []
            pools: defaultdict[str, list[tuple[Tenant, Lane]]] = defaultdict(list)
            strangers: list[str] = []
            for tenant, lane in self._lanes():
                name = LaneName(lane.tenant, lane.channel)
                state = self._settle(name, tenant, lane, query, changed)
                is_ours = state.query == query and self._may_be_read(name, tenant, state)
                if lane.is_shared and query == SHARED and is_ours and state.epoch == 1:
                    pools[lane.stream].append((tenant, lane))
                    continue
                if lane.is_shared and query == SHARED and state.epoch == 1:
                    # Should it be read again, then by itself: those it shared the stream with have gone on.
                    state = changed[name] = replace(state, epoch=2)
                if state.epoch > 1:
                    strangers.append(lane.subjects)
                if is_ours:
                    found.append(self._stream(tenant, lane, state))
            found += [self._pool(stream, members, strangers) for stream, members in pools.items()]
            self._change(changed)
            self._answers[query] = found
            return found

    def streams_planned(self, query: str) -> list[Stream]:
        """What the query reads in the batch that it has planned last."""
        with self._lock:
            return self._answers.get(query, [])

    def started(self, query: str) -> None:
        with self._lock:
            self._running.add(query)

    def ended(self, query: str) -> None:
        """It will not be planned again; whoever wants its lanes may have them."""
        with self._lock:
            self._running.discard(query)

    # -- what batches tell ------------------------------------------------------------------------------------------

    def advanced(self, done: Mapping[LaneName, Done], *, is_recorded: bool = False) -> None:
        """A batch is done. `is_recorded`: its tasks have told the database already."""
        with self._lock:
            if done and not is_recorded:
                self.progress.advance(done)
                STEP.emit(pipeline=self.progress.pipeline, step="recorded")
            for lane, each in done.items():
                if (state := self._states.get(lane)) and not state.is_parked:
                    state.sequence = max(state.sequence, each.sequence)
                    self._aside.pop(lane, None)

    def parked(
        self, lane: LaneName, sequence: int | None, reason: str, traceback: str, *, is_recorded: bool = False
    ) -> None:
        with self._lock:
            if not is_recorded:
                self.progress.park(lane, sequence, reason, traceback)
            if state := self._states.get(lane):
                state.is_parked = True
        PARKED.emit(
            pipeline=self.progress.pipeline, tenant=lane.tenant, channel=lane.channel, sequence=sequence, reason=reason
        )

    def lanes_in(self, pools: Container[str]) -> list[LaneName]:
        """All lanes of shared streams, also those that came to be since the batch was planned."""
        with self._lock:
            fresh: dict[LaneName, LaneState] = {}
            found = []
            for tenant, lane in self._lanes():
                if lane.is_shared and lane.stream in pools:
                    name = LaneName(lane.tenant, lane.channel)
                    found.append(name)
                    if name not in self._states:
                        self._settle(name, tenant, lane, SHARED, fresh)
            self._change(fresh)
            return found

    def position(self, lane: LaneName) -> int:
        with self._lock:
            state = self._states.get(lane)
            return state.sequence if state else 0

    def id_of(self, lane: LaneName) -> UUID | None:
        with self._lock:
            state = self._states.get(lane)
            return state.id if state else None

    def set_aside(self, lane: LaneName, reason: str) -> None:
        """Leave a lane out for a while, longer each time: what is wrong is not its events but where they are or go."""
        with self._lock:
            state = self._states.get(lane)
            if state is None:
                return
            _, pause = self._aside.get(lane, (0.0, FIRST_PAUSE / 2))
            pause = min(2 * pause, LONGEST_PAUSE)
            self._change({lane: replace(state, epoch=state.epoch + 1)})
            self._aside[lane] = time.monotonic() + pause, pause
        SET_ASIDE.emit(
            pipeline=self.progress.pipeline, tenant=lane.tenant, channel=lane.channel, reason=reason, pause=pause
        )

    def _is_set_aside(self, lane: LaneName) -> bool:
        until, _ = self._aside.get(lane, (0.0, 0.0))
        return time.monotonic() < until

    def is_parked(self, lane: LaneName) -> bool:
        with self._lock:
            state = self._states.get(lane)
            return state is not None and state.is_parked

    def dedicated_tenants(self) -> set[str]:
        """Who has, or is about to have, a query to itself."""
        with self._lock:
            wanted = {tenant.id for tenant, _ in self._lanes() if self._wanted_query(tenant) != SHARED}
            having = {state.query for state in self._states.values() if state.query != SHARED}
            return wanted | (having & self._running)

    # -- how it is decided ------------------------------------------------------------------------------------------

    def _lanes(self) -> Iterator[tuple[Tenant, Lane]]:
        for tenant in self._roster:
            if tenant.status == Status.DELETING:
                continue
            for channel in tenant.channels:
                lane = self._roster.lane(tenant.id, channel.name)
                if lane and not channel.removing and self._channel in (None, channel.name):
                    yield tenant, lane

    def _wanted_query(self, tenant: Tenant) -> str:
        return tenant.id if tenant.limits.dedicated and self._may_be_dedicated else SHARED

    def _settle(
        self, name: LaneName, tenant: Tenant, lane: Lane, query: str, changed: dict[LaneName, LaneState]
    ) -> LaneState:
        """The state of a lane, after what only now could be changed of it."""
        wanted, place = self._wanted_query(tenant), f"{tenant.uid}/{lane.account}/{lane.stream}"
        known = self._states.get(name)
        if known is None or not known.place.startswith(str(tenant.uid)):
            # A tenant that was deleted and made anew under its old name is another one.
            changed[name] = LaneState(uuid4(), 0, 1, wanted, place)
            return changed[name]
        state = known
        may_leave = state.query == query or state.query not in self._running
        if state.query != wanted and may_leave:
            state = replace(state, query=wanted, epoch=state.epoch + 1)
            HANDED_OVER.emit(
                pipeline=self.progress.pipeline,
                tenant=name.tenant,
                channel=name.channel,
                query=wanted,
                sequence=state.sequence,
            )
        if state.place != place and state.query == query:
            state = replace(state, place=place, epoch=state.epoch + 1)
        if state is not known:
            changed[name] = state
        return state

    def _change(self, changed: dict[LaneName, LaneState]) -> None:
        """On record first: who believes what the database does not know leaves out what it should read."""
        if changed:
            self.progress.put(changed)
            self._states |= changed

    def _may_be_read(self, name: LaneName, tenant: Tenant, state: LaneState) -> bool:
        return tenant.status == Status.ACTIVE and not state.is_parked and not self._is_set_aside(name)

    def _stream(self, tenant: Tenant, lane: Lane, state: LaneState) -> Stream:
        return Stream(
            lane.stream,
            weight=tenant.limits.weight,
            group=tenant.id,
            most=self._most_of_one if state.query == SHARED else 1.0,
            key=key_of(LaneName(lane.tenant, lane.channel), state.id, state.epoch),
            access=self._access.to(tenant, lane),
            start=state.sequence + 1 if state.sequence else None,
            subjects=(lane.subjects,) if lane.is_shared else (),
        )

    def _pool(self, stream: str, members: list[tuple[Tenant, Lane]], strangers: list[str]) -> Stream:
        """All lanes of a shared stream at once.

        Those that are left out are named, and not those that are read: a tenant that has just got its place there may
        be unknown here for a moment, and its events are read all the same. What a lane that has moved away has left
        there for the moment is read where it is now.
        """
        tenant, lane = members[0]
        together = {tenant.id: tenant.limits.weight for tenant, _ in members}
        return Stream(
            stream,
            weight=max(1, min(HEAVIEST, sum(together.values()))),
            group=stream,
            most=min(1.0, self._most_of_one * len(together)),
            access=self._access.to(tenant, lane),
            excluding=tuple(strangers),
        )

    def _refresh(self) -> None:
        """Somebody else may have resumed a lane, or erased it."""
        if time.monotonic() - self._refreshed_at < REFRESH_SECONDS:
            return
        try:
            found = self.progress.load()
        except _AWAY:
            return
        self._refreshed_at = time.monotonic()
        for lane, state in found.items():
            known = self._states.get(lane)
            if known and known.is_parked and not state.is_parked:
                RESUMED.emit(
                    pipeline=self.progress.pipeline,
                    tenant=lane.tenant,
                    channel=lane.channel,
                    sequence=state.sequence + 1,
                )
            if known and not known.is_parked and not state.is_parked:
                # What a batch has just told is not overtaken by what was read a moment before.
                state.sequence = max(state.sequence, known.sequence)
                state.epoch = max(state.epoch, known.epoch)
        self._states = found
