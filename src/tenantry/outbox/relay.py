"""The relay: carries what was emitted to the lanes, in their order, and gives each tenant its share.

One thread, one loop that never waits for a single lane. In each turn of it the answers that have come are taken, the
next events of the lanes that can go on are read and sent, and now and then the cursors are moved. While the broker
stores one batch, PostgreSQL writes the next.
"""

from __future__ import annotations

import math
import select
import socket
import time
from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Final

import psycopg

import nats_bulk
from nats_bulk import PublishError
from tenantry.errors import BrokerError
from tenantry.outbox.carrier import Carrier
from tenantry.outbox.inspector import Inspector, StreamGone
from tenantry.outbox.log import Cursor, Frames, OutboxLog, Request, Turn
from tenantry.outbox.shares import Shares, Want
from tenantry.outbox.track import Track, pause_after, stream_of
from tenantry.telemetry import signal
from tenantry.tenants.lanes import Lane
from tenantry.tenants.rates import Bucket
from tenantry.tenants.roster import Account, Roster
from tenantry.tenants.tenant import Status, Tenant

CARRIED = signal("outbox.carried", "Events were published and cursors moved.", "events", "lanes", level="debug")
STEP = signal("outbox.step", "The relay is about to do something.", "step", level="debug")
PUT_OFF = signal(
    "outbox.put_off",
    "The next event of a lane could not be published; it is tried again.",
    "tenant",
    "channel",
    "attempts",
    "seconds",
    "reason",
    level="warning",
)
DEAD_LETTER = signal(
    "outbox.dead_letter",
    "An event went to the dead letters, and its lane goes on without it.",
    "tenant",
    "channel",
    "event_id",
    "type",
    "attempts",
    "reason",
    "traceparent",
    level="error",
)
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
LAGGARD_SECONDS: Final = 0.1
"""A lane that is not answered for longer is no longer waited for by the others."""
CARRIER_SECONDS: Final = 60.0
MIXED_SECONDS: Final = 60.0
"""So long is believed that others publish to a lane, too."""
INSPECTIONS: Final = 4
CHAIN_SIZE: Final = len("Nats-Expected-Last-Msg-Id: ") + 1024 + 64
_WRONG_LAST_ID: Final = 10070
_STORE_REFUSED: Final = 10077


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
        self._log = OutboxLog(url)
        self._roster = roster
        self._attempts = attempts
        self._is_replicated = is_replicated
        self._refresh = refresh
        self._make_carrier = carrier
        self._shares = Shares()
        self._inspector = Inspector()
        self._executor = ThreadPoolExecutor(INSPECTIONS, "relay")
        self._carriers: dict[str, Carrier] = {}
        self._tracks: dict[int, Track] = {}
        self._unsettled: dict[int, Track] = {}
        """Lanes that we let go of without being sure what the broker has of them."""
        self._mixed_until: dict[int, float] = {}
        """Lanes to which others publish, too."""
        self._buckets: dict[str, Bucket] = {}
        self._stopping = False
        self._bell, self._ringer = socket.socketpair()
        self._bell.setblocking(False)
        self._ringer.setblocking(False)
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
                except psycopg.OperationalError as problem:
                    self._lose_database(problem)
            with suppress(psycopg.OperationalError):
                self._finish()
        finally:
            self._log.close()
            self._inspector.close()
            for carrier in self._carriers.values():
                carrier.close()
            self._executor.shutdown(wait=False, cancel_futures=True)
            self._bell.close()
            self._ringer.close()

    def stop(self) -> None:
        """From any thread."""
        self._stopping = True
        self._ring()

    def _ring(self) -> None:
        with suppress(OSError):
            self._ringer.send(b"!")

    def _is_database_there(self) -> bool:
        if self._log.is_open:
            return True
        if time.monotonic() < self._retry_at:
            self._wait(self._retry_at)
            return False
        self._log.open()
        self._failures, self._lost_at = 0, 0.0
        return True

    def _lose_database(self, problem: psycopg.OperationalError) -> None:
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
        deadline = time.monotonic() + 5
        while any(track.flights for track in self._tracks.values()) and time.monotonic() < deadline:
            self._collect(0.01)
        if self._log.is_open:
            self._save()
            self._release()

    # -- the loop ---------------------------------------------------------------------------------------------------

    def _turn(self) -> None:
        now = time.monotonic()
        self._platform.is_ready  # noqa: B018 - it connects while there is nothing to do, so as to be ready
        if now >= self._look_at:
            self._look(now)
        self._collect()
        self._inspect(now)
        self._settle_troubles(now)
        is_leaving = self._claimed_at and now - self._claimed_at > TURN_SECONDS
        sent = 0 if is_leaving and not self._has_laggard(now) else self._send_round(now)
        in_air = any(track.flights for track in self._tracks.values())
        if now - self._saved_at > SAVE_SECONDS or not in_air:
            self._save()
        if self._claimed_at and not in_air and (is_leaving or not self._has_work(now)):
            self._release()
        if not sent:
            self._wait(self._next_deadline(now, in_air))

    def _has_work(self, now: float) -> bool:
        """Whether a lane that we hold can go on soon."""
        return any(
            track.inspection is not None or (not track.is_drained and track.retry_at < now + SAVE_SECONDS)
            for track in self._tracks.values()
        )

    def _next_deadline(self, now: float, in_air: bool) -> float:
        soon = [self._look_at]
        soon += [track.retry_at for track in self._tracks.values() if track.retry_at > now]
        if in_air:
            soon.append(now + LAGGARD_SECONDS)
        return min(soon)

    def _wait(self, until: float) -> None:
        """For an answer, for the bell, or until it is time."""
        sockets = [number for carrier in self._carriers.values() if (number := carrier.fileno()) is not None]
        select.select([self._bell.fileno(), *sockets], [], [], max(0.0, until - time.monotonic()))
        with suppress(BlockingIOError):
            self._bell.recv(4096)

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
        waiting = [each for each in self._log.waiting(horizon, held) if self._can_serve(each)]
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

    def _can_serve(self, tenant: str) -> bool:
        found = self._roster.find(tenant)
        return found is not None and found.status == Status.ACTIVE and self._platform.is_ready

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
        track = Track.of(cursor, lane, horizon, self._is_chained(cursor.lane, lane, tenant))
        track.retry_at = time.monotonic() + max(0.0, cursor.wait or 0.0)
        if before := self._unsettled.pop(cursor.lane, None):
            track.remember(before)
        self._tracks[cursor.lane] = track

    def _is_chained(self, number: int, lane: Lane, tenant: Tenant) -> bool:
        """A chain keeps the order whatever the broker does, and spares it most answers. Others that publish to the same
        stream break it: with them about, only where a stream may refuse one event and take the next."""
        if lane.is_shared:
            return False
        is_mixed = time.monotonic() < self._mixed_until.get(number, 0.0)
        return not is_mixed or tenant.limits.discard == "new" or self._is_replicated(tenant)

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
            track.lane, track.is_chained = lane, self._is_chained(number, lane, tenant)

    # -- sending ----------------------------------------------------------------------------------------------------

    @property
    def _platform(self) -> Carrier:
        return self._carrier(self._roster.platform)

    def _carrier(self, place: Lane | Account) -> Carrier:
        carrier = self._carriers.get(place.account)
        if carrier is None:
            self._drop_idle_carriers()
            carrier = self._make_carrier(place.broker, place.account, self._executor, self._ring)
            self._carriers[place.account] = carrier
        return carrier

    def _drop_idle_carriers(self) -> None:
        old = time.monotonic() - CARRIER_SECONDS
        used = {track.lane.account for track in self._tracks.values()} | {self._roster.platform.account}
        for account in [each for each, carrier in self._carriers.items() if carrier.used_at < old]:
            if account not in used:
                self._carriers.pop(account).close()

    def _send_round(self, now: float) -> int:
        """Read and send the next events of all lanes that can go on; how many."""
        if self._must_wait_for_answers(now):
            return 0
        able: defaultdict[str, list[Track]] = defaultdict(list)
        for track in self._tracks.values():
            if track.can_send(now) and self._carrier(track.lane).is_ready:
                able[track.tenant].append(track)
        wants = {tenant: self._want(tenant, now) for tenant in able}
        in_air = sum(carrier.in_air for carrier in self._carriers.values())
        quotas = self._shares.allot(wants, min(ROUND, IN_AIR - in_air))
        requests = [
            self._request(track, 1 if track.is_careful else quota, chained=track.is_chained)
            for tenant, allotted in quotas.items()
            for track, quota in _split(able[tenant], allotted)
        ]
        if not requests:
            return 0
        STEP.emit(step="read")
        return sum(self._send(frames, requests[place], now) for place, frames in enumerate(self._log.read(requests)))

    def _must_wait_for_answers(self, now: float) -> bool:
        """Whether somebody would miss a round because of answers that are due any moment."""
        return any(
            track.flights and now - track.flights[0][0].sent_at < LAGGARD_SECONDS
            for track in self._tracks.values()
            if not track.can_send(now) and not track.is_drained and track.retry_at <= now
        )

    def _want(self, tenant: str, now: float) -> Want:
        found, bucket = self._roster.find(tenant), self._buckets.get(tenant)
        if found is None or bucket is None:
            return Want(1, 0)
        bucket.fill(now)
        return Want(found.limits.weight, min(found.limits.batch, int(bucket.tokens)))

    def _request(self, track: Track, quota: int, *, chained: bool) -> Request:
        carrier, tenant = self._carrier(track.lane), self._roster.find(track.tenant)
        assert tenant is not None
        size = min(tenant.limits.payload, carrier.max_payload)
        return Request(
            track.number,
            *track.sent,
            track.horizon,
            quota,
            size - CHAIN_SIZE if chained else size,
            track.lane.prefix,
            track.lane.message_id(""),
            carrier.inbox,
            carrier.reserve(1 if chained else quota),
            chained,
            track.previous,
            track.cursor.starts_at,
        )

    def _send(self, frames: Frames, request: Request, now: float) -> int:
        track = self._tracks[frames.lane]
        if not frames.events:
            return self._find_nothing(track, frames, request)
        self._shares.spend(track.tenant, frames.cost)
        self._buckets[track.tenant].take(frames.events, now)
        carrier, subjects = self._carrier(track.lane), track.lane.subjects
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
        elif track.flights:
            pass
        elif request.chained:
            # Alone, without the mention of the one before it, it may fit.
            alone = self._request(track, 1, chained=False)
            return self._send(self._log.read([alone])[0], alone, time.monotonic())
        else:
            track.trouble = PublishError(413, 10054, f"it is larger than the {request.size} bytes that are taken")
        return 0

    # -- answers ----------------------------------------------------------------------------------------------------

    def _collect(self, timeout: float = 0.0) -> None:
        for carrier in self._carriers.values():
            carrier.collect(timeout)
        for track in self._tracks.values():
            track.take_answers()

    def _inspect(self, now: float) -> None:
        """Ask the broker what it has, for lanes that nobody here can be sure of."""
        for track in self._tracks.values():
            if track.is_inspected or track.retry_at > now or track.flights:
                continue
            if track.inspection is None:
                self._save()
                first = self._log.next_event(track.cursor, track.answered, track.horizon)
                if first is None:
                    track.is_inspected = track.is_drained = True
                    track.trouble = None
                    continue
                track.inspection = self._executor.submit(
                    self._inspector.stored, track.lane, track.sequence, first.created_at
                )
                track.inspection.add_done_callback(lambda _: self._ring())
            elif track.inspection.done():
                self._learn(track)

    def _learn(self, track: Track) -> None:
        inspection, track.inspection = track.inspection, None
        assert inspection is not None
        try:
            ids, last = inspection.result()
        except StreamGone:
            self._refresh()
            track.is_inspected = True
            track.trouble = PublishError(404, 10059, f"there is no stream {track.lane.stream}")
            return
        except (BrokerError, nats_bulk.BulkError) as problem:
            # Nobody's fault but the broker's.
            self._put_off(track, str(problem))
            return
        own = len(track.lane.message_id(""))
        track.stored = {each[own:] for each in ids}
        self._skip_stored(track)
        if not track.stored:
            track.sequence = max(track.sequence, last)
        track.is_inspected = True

    def _skip_stored(self, track: Track) -> None:
        while track.stored:
            following = self._log.next_ids(track.cursor, track.answered, track.horizon, len(track.stored))
            for place, event_id in following:
                if event_id not in track.stored:
                    track.stored.clear()
                    return
                track.stored.discard(event_id)
                track.skip_to(place)
            if not following:
                track.stored.clear()

    def _settle_troubles(self, now: float) -> None:
        for track in list(self._tracks.values()):
            if track.trouble is None and (refusal := self._carrier(track.lane).refusal) and track.can_send(now):
                track.trouble = PublishError(403, 0, refusal)
            if track.trouble is not None and track.is_inspected and not track.flights:
                trouble, track.trouble = track.trouble, None
                self._settle(track, trouble)

    def _settle(self, track: Track, trouble: PublishError) -> None:
        """What was not stored is tried again, or given up, according to whose fault it is."""
        if trouble.err_code == _WRONG_LAST_ID:
            tenant = self._roster.find(track.tenant)
            self._mixed_until[track.number] = time.monotonic() + MIXED_SECONDS
            track.is_chained = tenant is not None and self._is_chained(track.number, track.lane, tenant)
            return
        if not self._carrier(track.lane).is_ready:
            return
        if not trouble.certain or (trouble.code == 503 and trouble.err_code != _STORE_REFUSED):
            # The broker is not itself, or the lane has moved: that is no fault of the event's.
            self._refresh()
            self._put_off(track, trouble.description)
            return
        track.attempts += 1
        if track.attempts >= self._attempts:
            self._bury(track, trouble.description)
        else:
            self._put_off(track, trouble.description)

    def _put_off(self, track: Track, reason: str) -> None:
        track.failures += 1
        seconds = pause_after(track.failures)
        self._save()
        self._log.put_off(track.number, track.attempts, seconds, reason)
        track.retry_at = time.monotonic() + seconds
        PUT_OFF.emit(
            tenant=track.tenant, channel=track.cursor.channel, attempts=track.attempts, seconds=seconds, reason=reason
        )

    def _bury(self, track: Track, reason: str) -> None:
        self._save()
        event = self._log.next_event(track.cursor, track.answered, track.horizon)
        if event is None:
            return
        self._log.bury(track.number, event, track.attempts, reason)
        DEAD_LETTER.emit(
            tenant=track.tenant,
            channel=track.cursor.channel,
            event_id=event.event_id,
            type=event.type,
            attempts=track.attempts,
            reason=reason,
            traceparent=event.traceparent,
        )
        track.skip_to(track.answered._replace(ticket=event.ticket, id=event.id))
        track.saved, track.attempts, track.failures = track.answered, 0, 0

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
        CARRIED.emit(events=0, lanes=len(moved))

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
        self._forget_turns()

    def _let_go(self, lane: int) -> None:
        track = self._tracks.pop(lane)
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
