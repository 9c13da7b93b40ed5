"""The relay: carries what was emitted to the lanes, in their order, and gives each tenant its share.

One thread, one loop that never waits for a single lane. In each turn of it the answers that have come are taken, the
next events of the lanes that can go on are read and sent, and now and then the cursors are moved. While the broker
stores one batch, PostgreSQL writes the next.
"""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Final

import psycopg

from nats_bulk import PublishError
from tenantry.outbox.carrier import Carrier
from tenantry.outbox.carriers import Carriers
from tenantry.outbox.chains import LONGEST_LINK, Chains
from tenantry.outbox.log import Cursor, Frames, OutboxLog, Request, Turn
from tenantry.outbox.recovery import Recovery
from tenantry.outbox.shares import Shares, Want
from tenantry.outbox.track import Track, pause_after, stream_of
from tenantry.telemetry import signal
from tenantry.tenants.rates import Bucket
from tenantry.tenants.roster import Roster
from tenantry.tenants.tenant import Status, Tenant

CARRIED = signal("outbox.carried", "Events were published and cursors moved.", "events", "lanes", level="debug")
STEP = signal("outbox.step", "The relay is about to do something.", "step", level="debug")
DATABASE_LOST = signal("outbox.database_lost", "The outbox cannot be reached.", "seconds", "error", level="warning")

ROUND: Final = 2000
"""Events of a round, about: fewer make more work, more make a newcomer wait."""
IN_AIR: Final = 8000
LOOK_SECONDS: Final = 0.015
IDLE_SECONDS: Final = 0.02
QUIET_SECONDS: Final = 1.0
"""So long is believed that there is nothing new, without looking everywhere."""
SAVE_SECONDS: Final = 0.1
TURN_SECONDS: Final = 1.0
LAGGARD_SECONDS: Final = 0.25
"""A lane that is not answered for longer is no longer waited for by the others."""
FINISH_SECONDS: Final = 5.0
THREADS: Final = 4
"""For what may take its time: connecting, and asking the broker what it has."""


class Relay:
    def __init__(
        self,
        url: str,
        roster: Roster,
        *,
        attempts: int,
        is_replicated: Callable[[Tenant], bool],
        refresh: Callable[[], None],
        carrier: type[Carrier] = Carrier,
    ) -> None:
        self._roster = roster
        self._log = OutboxLog(url)
        self._executor = ThreadPoolExecutor(THREADS, "relay")
        self._carriers = Carriers(roster.platform, self._executor, carrier)
        self._chains = Chains(is_replicated)
        self._recovery = Recovery(
            self._log,
            roster,
            self._carriers,
            self._chains,
            self._executor,
            attempts=attempts,
            refresh=refresh,
            save=self._save,
        )
        self._shares = Shares()
        self._tracks: dict[int, Track] = {}
        self._unsettled: dict[int, Track] = {}
        """Lanes that we let go of without being sure what the broker has of them."""
        self._seen: dict[int, int] = {}
        """With which connection each lane was carried last."""
        self._buckets: dict[str, Bucket] = {}
        self._stopping = False
        self._roster_seen = 0
        self._relays, self._relays_counted_at = 1, 0.0
        self._claimed_at = 0.0
        self._looked_at = self._look_at = 0.0
        self._pulse = -1
        self._has_open_writers = False
        self._saved_at = 0.0
        self._failures, self._lost_at, self._retry_at = 0, 0.0, 0.0

    # -- life -------------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Until `stop`; what is on its way is then finished."""
        try:
            while not self._stopping:
                try:
                    if self._is_database_there():
                        self._turn()
                except psycopg.Error as problem:
                    self._lose_database(problem)
            with suppress(psycopg.Error):
                self._finish()
        finally:
            self._log.close()
            self._recovery.close()
            self._carriers.close()
            self._executor.shutdown(wait=False, cancel_futures=True)

    def stop(self) -> None:
        """From any thread."""
        self._stopping = True
        self._carriers.ring()

    def _is_database_there(self) -> bool:
        if self._log.is_open:
            return True
        if time.monotonic() < self._retry_at:
            self._carriers.wait(self._retry_at)
            return False
        self._log.open()
        self._failures, self._lost_at = 0, 0.0
        return True

    def _lose_database(self, problem: psycopg.Error) -> None:
        """All turns are gone with it. What was sent and not written down, the next holder asks the broker for."""
        now = time.monotonic()
        self._lost_at = self._lost_at or now
        DATABASE_LOST.emit(seconds=now - self._lost_at, error=problem)
        self._log.close()
        self._forget_turns()
        self._retry_at = now + min(5.0, pause_after(self._failures))
        self._failures += 1
        self._pulse = -1

    def _finish(self) -> None:
        deadline = time.monotonic() + FINISH_SECONDS
        while self._is_in_air and time.monotonic() < deadline:
            self._carriers.wait(time.monotonic() + SAVE_SECONDS)
            self._collect()
        if self._log.is_open:
            self._save()
            self._release()

    # -- the loop ---------------------------------------------------------------------------------------------------

    def _turn(self) -> None:
        now = time.monotonic()
        is_connected = self._carriers.platform.is_ready
        if now >= self._look_at:
            self._look(now)
        self._collect()
        self._recovery.work(list(self._tracks.values()), now)
        is_leaving = self._claimed_at > 0 and (now - self._claimed_at > TURN_SECONDS or not is_connected)
        sent = 0 if is_leaving and not self._has_laggard(now) else self._send_round(now)
        if now - self._saved_at > SAVE_SECONDS or not self._is_in_air:
            self._save()
        must_stay = self._is_in_air or (is_connected and self._is_unsettled)
        if self._claimed_at and not must_stay and (is_leaving or not self._has_work(now)):
            self._release()
        if not sent:
            self._carriers.wait(self._next_deadline(now))

    @property
    def _is_in_air(self) -> bool:
        return any(track.flights for track in self._tracks.values())

    @property
    def _is_unsettled(self) -> bool:
        """Whether we are about to learn something of a lane: whoever took it over now would begin from the start."""
        return any(track.inspection is not None or track.trouble is not None for track in self._tracks.values())

    def _has_work(self, now: float) -> bool:
        """Whether a lane that we hold can go on soon."""
        return any(
            track.inspection is not None or (not track.is_drained and track.retry_at < now + SAVE_SECONDS)
            for track in self._tracks.values()
        )

    def _next_deadline(self, now: float) -> float:
        soon = [self._look_at]
        soon += [track.retry_at for track in self._tracks.values() if track.retry_at > now]
        if self._is_in_air:
            soon.append(now + LAGGARD_SECONDS)
        return min(soon)

    def _has_laggard(self, now: float) -> bool:
        """Whether a lane keeps us waiting for an answer longer than is usual."""
        return any(
            track.flights and now - track.flights[0][0].sent_at > LAGGARD_SECONDS for track in self._tracks.values()
        )

    # -- who has something ------------------------------------------------------------------------------------------

    def _look(self, now: float) -> None:
        """Find tenants with something to publish, and take their turns."""
        if not self._is_worth_a_look(now):
            self._look_at = now + IDLE_SECONDS
            return
        horizon = self._log.horizon()
        self._has_open_writers = bool(horizon.lanes) or horizon.ticket < horizon.head
        self._pulse, self._looked_at = horizon.head, now
        self._follow_roster()
        for track in self._tracks.values():
            track.look_up_to(horizon.of(track.number))
        held = {track.tenant for track in self._tracks.values()}
        waiting = list(
            {tenant for tenant, channel in self._log.waiting(horizon, held) if self._can_serve(tenant, channel)}
        )
        if waiting and (limit := self._fair_limit(len(waiting), now)):
            turns, cursors = self._log.claim(waiting, limit)
            if turns and not self._claimed_at:
                self._claimed_at = now
            for turn in turns:
                self._open_bucket(turn, now)
            for cursor in cursors:
                self._open_track(cursor, horizon.of(cursor.lane))
        took = time.monotonic() - now
        self._look_at = now + max(LOOK_SECONDS if self._tracks else IDLE_SECONDS, 10 * took)

    def _is_worth_a_look(self, now: float) -> bool:
        if self._tracks or self._has_open_writers or now - self._looked_at > QUIET_SECONDS:
            return True
        return self._log.pulse() != self._pulse

    def _can_serve(self, tenant: str, channel: str) -> bool:
        found = self._roster.find(tenant)
        is_there = (
            found is not None and found.status == Status.ACTIVE and self._roster.lane(tenant, channel) is not None
        )
        return is_there and self._carriers.platform.is_ready

    def _fair_limit(self, waiting: int, now: float) -> int:
        """So that all relays have about the same number of tenants."""
        if now - self._relays_counted_at > QUIET_SECONDS:
            self._relays, self._relays_counted_at = max(1, self._log.relays()), now
        held = len({track.tenant for track in self._tracks.values() if not track.is_drained})
        return max(0, math.ceil((waiting + held) / self._relays) - held)

    def _open_bucket(self, turn: Turn, now: float) -> None:
        tenant = self._roster.find(turn.tenant_id)
        if tenant is not None:
            limits = tenant.limits
            tokens = limits.publish_burst if turn.tokens is None else turn.tokens
            self._buckets[tenant.id] = Bucket(limits.publish_rate, limits.publish_burst, tokens, now - turn.age)

    def _open_track(self, cursor: Cursor, horizon: int) -> None:
        lane, tenant = self._roster.lane(cursor.tenant_id, cursor.channel), self._roster.find(cursor.tenant_id)
        if lane is None or tenant is None:
            return
        track = Track.of(cursor, lane, horizon, self._chains.is_chained(cursor.lane, lane, tenant))
        track.retry_at = time.monotonic() + max(0.0, cursor.wait or 0.0)
        if before := self._unsettled.pop(cursor.lane, None):
            track.remember(before)
        track.generation = self._seen.get(cursor.lane, -1)
        self._tracks[cursor.lane] = track

    def _follow_roster(self) -> None:
        if self._roster_seen == self._roster.changes:
            return
        self._roster_seen = self._roster.changes
        now = time.monotonic()
        for number, track in list(self._tracks.items()):
            lane, tenant = self._roster.lane(track.tenant, track.cursor.channel), self._roster.find(track.tenant)
            if lane is None or tenant is None or tenant.status != Status.ACTIVE:
                if not track.flights:
                    self._save()
                    self._let_go(number)
                continue
            if bucket := self._buckets.get(tenant.id):
                bucket.resize(tenant.limits.publish_rate, tenant.limits.publish_burst, now)
            if stream_of(lane) != stream_of(track.lane):
                if track.flights:
                    # They are answered first.
                    self._roster_seen = -1
                    continue
                track.sequence = 0
            track.lane, track.is_chained = lane, self._chains.is_chained(number, lane, tenant)

    # -- sending ----------------------------------------------------------------------------------------------------

    def _send_round(self, now: float) -> int:
        """Read and send the next events of all lanes that can go on; how many."""
        if self._must_wait_for_answers(now):
            return 0
        able: defaultdict[str, list[Track]] = defaultdict(list)
        blocked: set[str] = set()
        for track in self._tracks.values():
            if track.can_send(now) and self._carriers.of(track.lane).is_ready:
                able[track.tenant].append(track)
            elif track.is_waiting_for_answers(now):
                blocked.add(track.tenant)
        quotas = self._shares.allot(
            {tenant: self._want(tenant, now) for tenant in able},
            min(ROUND, IN_AIR - self._carriers.in_air),
            {tenant: self._want(tenant, now) for tenant in blocked - able.keys()},
        )
        requests = {
            track.number: self._request(track, 1 if track.is_careful else quota, chained=track.is_chained)
            for tenant, allotted in quotas.items()
            for track, quota in _split(able[tenant], allotted)
        }
        if not requests:
            return 0
        STEP.emit(step="read")
        return sum(self._send(frames, requests[frames.lane], now) for frames in self._log.read(list(requests.values())))

    def _must_wait_for_answers(self, now: float) -> bool:
        """Whether somebody would miss a round because of answers that are due any moment."""
        return any(
            now - track.flights[0][0].sent_at < LAGGARD_SECONDS
            for track in self._tracks.values()
            if track.is_waiting_for_answers(now)
        )

    def _want(self, tenant: str, now: float) -> Want:
        found, bucket = self._roster.find(tenant), self._buckets.get(tenant)
        if found is None or bucket is None:
            return Want(1, 0)
        bucket.fill(now)
        return Want(found.limits.weight, min(found.limits.batch, int(bucket.tokens)))

    def _request(self, track: Track, quota: int, *, chained: bool) -> Request:
        carrier, tenant = self._carriers.of(track.lane), self._roster.find(track.tenant)
        assert tenant is not None
        size = min(tenant.limits.payload, carrier.max_payload)
        return Request(
            track.number,
            *track.sent,
            track.horizon,
            quota,
            size - LONGEST_LINK if chained else size,
            track.lane.prefix,
            track.lane.message_id(""),
            carrier.inbox,
            carrier.reserve(1 if chained else quota),
            chained,
            track.previous,
            track.sequence or None,
            track.cursor.starts_at,
        )

    def _send(self, frames: Frames, request: Request, now: float) -> int:
        track = self._tracks[frames.lane]
        if not frames.events:
            return self._find_nothing(track, frames, request)
        self._shares.spend(track.tenant, frames.cost)
        self._buckets[track.tenant].take(frames.events, now)
        carrier, subjects = self._carriers.of(track.lane), track.lane.subjects
        if not carrier.is_ready:
            return 0
        if request.chained:
            flight = carrier.send_chained(frames.frames, subjects, frames.events, request.reply, frames.last_size)
        else:
            flight = carrier.send(frames.frames, subjects, frames.events, request.reply)
        track.sent = track.sent._replace(ticket=frames.last_ticket, id=frames.last_id)
        track.previous = frames.last_message_id
        track.flights.append((flight, track.sent))
        track.is_drained = frames.cost < request.quota and not frames.is_cut_short
        return frames.events

    def _find_nothing(self, track: Track, frames: Frames, request: Request) -> int:
        if not frames.is_cut_short:
            track.is_drained = True
            if all(each.is_drained for each in self._tracks.values() if each.tenant == track.tenant):
                self._shares.forget(track.tenant)
        elif track.flights or not self._carriers.of(track.lane).is_ready:
            pass
        elif request.chained:
            # Alone, without the mention of the one before it, it may fit.
            alone = self._request(track, 1, chained=False)
            return self._send(self._log.read([alone])[0], alone, time.monotonic())
        else:
            track.trouble = PublishError(413, 10054, f"it is larger than the {request.size} bytes that are taken")
        return 0

    # -- answers ----------------------------------------------------------------------------------------------------

    def _collect(self) -> None:
        self._carriers.collect()
        for track in self._tracks.values():
            track.take_answers()
            generation = self._carriers.of(track.lane).generation
            if track.generation != generation and not track.flights:
                # While there was no connection, others may have stored what waits here: ingest spools what it is not
                # sure of.
                track.generation = generation
                track.doubt(track.trouble)

    # -- what is written down ---------------------------------------------------------------------------------------

    def _save(self) -> None:
        """Move the cursors to where the lanes are."""
        self._saved_at = time.monotonic()
        moved = [track for track in self._tracks.values() if track.answered != track.saved]
        if not moved:
            return
        STEP.emit(step="save")
        ours = self._log.move([track.move() for track in moved])
        for track in moved:
            if track.number in ours:
                track.saved, track.attempts = track.answered, 0
            else:
                self._let_go(track.number)
        CARRIED.emit(events=sum(track.take_count() for track in moved), lanes=len(moved))

    def _release(self) -> None:
        """Let others have the turns."""
        STEP.emit(step="release")
        now = time.monotonic()
        for bucket in self._buckets.values():
            bucket.fill(now)
        # Who is well within its rate need not be written down each time.
        tokens = {
            tenant: bucket.tokens for tenant, bucket in self._buckets.items() if bucket.tokens < 0.9 * bucket.burst
        }
        self._log.release(tokens)
        self._carriers.drop_idle(track.lane.account for track in self._tracks.values())
        self._forget_turns()

    def _let_go(self, lane: int) -> None:
        track = self._tracks.pop(lane, None)
        if track is None:
            return
        self._seen[lane] = track.generation
        if track.flights or track.is_careful or not track.is_inspected:
            self._unsettled[lane] = track

    def _forget_turns(self) -> None:
        for lane in list(self._tracks):
            self._let_go(lane)
        self._buckets.clear()
        self._claimed_at = 0.0
        # There may be more to do for them.
        self._looked_at = self._look_at = 0.0


def _split(tracks: list[Track], quota: int) -> list[tuple[Track, int]]:
    """A tenant's share, for its lanes in turn: the one that was served least recently first."""
    tracks.sort(key=lambda track: track.flights[-1][0].sent_at if track.flights else 0.0)
    each, rest = divmod(quota, len(tracks))
    return [(track, amount) for place, track in enumerate(tracks) if (amount := each + (1 if place < rest else 0)) > 0]
