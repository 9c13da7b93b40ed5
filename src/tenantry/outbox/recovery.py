"""Lanes in doubt: the broker is asked what it has of them, and what it would not take is tried again, or given up."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from concurrent.futures import Executor
from typing import Final

import nats_bulk
from nats_bulk import PublishError
from tenantry.errors import BrokerError
from tenantry.outbox.carriers import Carriers
from tenantry.outbox.chains import Chains
from tenantry.outbox.inspector import Inspector, StreamGone
from tenantry.outbox.log import OutboxLog
from tenantry.outbox.track import Track, pause_after
from tenantry.telemetry import signal
from tenantry.tenants.roster import Roster

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

_BROKEN_CHAIN: Final = (10070, 10071)
_STORE_REFUSED: Final = 10077


class Recovery:
    def __init__(
        self,
        log: OutboxLog,
        roster: Roster,
        carriers: Carriers,
        chains: Chains,
        executor: Executor,
        *,
        attempts: int,
        refresh: Callable[[], None],
        save: Callable[[], None],
    ) -> None:
        """`refresh` reads the registry again, soon; `save` moves the cursors to where the lanes are."""
        self._log = log
        self._roster = roster
        self._carriers = carriers
        self._chains = chains
        self._executor = executor
        self._attempts = attempts
        self._refresh = refresh
        self._save = save
        self._inspector = Inspector()

    def work(self, tracks: Iterable[Track], now: float) -> None:
        # During an outage there is nobody to ask, and nothing to be said about single lanes.
        if not self._carriers.platform.is_ready:
            return
        for track in tracks:
            if track.flights or track.retry_at > now:
                continue
            if not track.is_inspected and not track.is_drained:
                self._inspect(track)
            if track.trouble is None and (refusal := self._carriers.of(track.lane).refusal) and track.can_send(now):
                track.trouble = PublishError(403, 0, refusal)
            if track.trouble is not None and track.is_inspected:
                trouble, track.trouble = track.trouble, None
                self._settle(track, trouble)

    def close(self) -> None:
        self._inspector.close()

    # -- what the broker has ----------------------------------------------------------------------------------------

    def _inspect(self, track: Track) -> None:
        if track.inspection is None:
            self._save()
            first = self._log.next_event(track.cursor, track.answered, track.horizon)
            if first is None:
                track.is_drained, track.trouble = True, None
                return
            track.inspection = self._executor.submit(
                self._inspector.stored, track.lane, track.sequence, first.created_at
            )
            track.inspection.add_done_callback(lambda _: self._carriers.ring())
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
        except (BrokerError, nats_bulk.BulkError) as problem:
            # Nobody's fault but the broker's.
            self._put_off(track, str(problem))
        else:
            own = len(track.lane.message_id(""))
            self._skip(track, {each[own:] for each in ids})
            track.sequence, track.is_inspected = last, True

    def _skip(self, track: Track, stored: set[str]) -> None:
        """Go on after what the stream has."""
        while stored:
            following = self._log.next_ids(track.cursor, track.answered, track.horizon, len(stored))
            for place, event_id in following:
                if event_id not in stored:
                    return
                stored.discard(event_id)
                track.skip_to(place)
            if not following:
                return

    # -- whose fault it is ------------------------------------------------------------------------------------------

    def _settle(self, track: Track, trouble: PublishError) -> None:
        if trouble.err_code in _BROKEN_CHAIN:
            self._chains.note_broken(track.number)
            tenant = self._roster.find(track.tenant)
            track.is_chained = tenant is not None and self._chains.is_chained(track.number, track.lane, tenant)
        elif not self._carriers.of(track.lane).is_ready and not trouble.certain:
            # It goes on with the connection.
            pass
        elif not trouble.certain or trouble.code == 429 or (trouble.code == 503 and not _is_full(trouble)):
            # The broker is not itself, or the lane has moved: that is no fault of the event's.
            self._refresh()
            self._put_off(track, trouble.description)
        else:
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
        if not self._log.bury(track.number, event, track.attempts, reason):
            # It has become somebody else's, who will find out for itself.
            track.doubt(None)
            return
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


def _is_full(trouble: PublishError) -> bool:
    """A stream that takes nothing new, as its plan wants it. A full disk is another matter, and no event's fault."""
    return trouble.err_code == _STORE_REFUSED and "maximum" in trouble.description
