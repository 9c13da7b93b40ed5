"""What a relay asks of the outbox's database. Blocking: a relay has a thread of its own.

Two connections: one keeps a transaction open, for the turns that it holds locked; the other reads and moves cursors.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any, Final, NamedTuple

import psycopg
from psycopg.rows import namedtuple_row

from tenantry.postgres.pool import APPLICATION, CONNECT_SECONDS
from tenantry.postgres.queries import SqlFolder

EVERY_LANE: Final = 736_800_000

# The way along the index is the right one for all values, also in a partition of which nobody has statistics yet; and
# planning for each anew would cost more than the query.
PLANNING: Final = (
    "set plan_cache_mode = force_generic_plan; set enable_seqscan = off; set enable_bitmapscan = off;"
    "set enable_hashjoin = off; set enable_mergejoin = off; set jit = off; set lock_timeout = '5s'"
)
# A machine that is gone says no goodbye: both ends notice within seconds, and its turns are others'.
KEEPALIVES: Final[dict[str, Any]] = {
    "keepalives": 1,
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 3,
    "tcp_user_timeout": 10_000,
}
SERVER_KEEPALIVES: Final = (
    "set tcp_keepalives_idle = 5; set tcp_keepalives_interval = 2; set tcp_keepalives_count = 3;"
    "set tcp_user_timeout = 10000"
)
_ID: Final = b"Nats-Msg-Id: "
_sql = SqlFolder("tenantry.outbox")


class Position(NamedTuple):
    """A place in a lane: the order of events there."""

    ticket: int
    id: int


class Horizon(NamedTuple):
    """How far lanes can be read: beyond, an open transaction may still commit something."""

    head: int
    ticket: int
    lanes: dict[int, int]

    def of(self, lane: int) -> int:
        return min(self.ticket, self.lanes.get(lane, self.ticket))


class Turn(NamedTuple):
    tenant_id: str
    tokens: float | None
    """What was left of the tenant's rate, `age` seconds ago; none: all of it."""
    age: float


class Cursor(NamedTuple):
    tenant_id: str
    channel: str
    lane: int
    ticket: int
    id: int
    starts_at: datetime
    stream: str
    sequence: int
    attempts: int
    is_known: bool
    """Whether we moved it last; if not, somebody may have published more than it says."""
    wait: float | None
    """Seconds until the next attempt."""


class Request(NamedTuple):
    """Which events of a lane are wanted, and how they are to be addressed."""

    lane: int
    ticket: int
    id: int
    horizon: int
    quota: int
    size: int
    prefix: str
    id_prefix: str
    inbox: str
    reply: int
    chained: bool
    previous: str | None
    """The message id of the event before, if that may still be on its way."""
    sequence: int | None
    """Where the stream ends, if that is known and nothing is on its way."""
    starts_at: datetime


class Frames(NamedTuple):
    """Events of a lane, ready to be sent."""

    lane: int
    events: int
    cost: int
    last_ticket: int
    last_id: int
    last_size: int
    """Bytes of the last message, headers and event."""
    is_cut_short: bool
    """Whether an event follows that is too large to be sent."""
    frames: bytes

    @property
    def last_message_id(self) -> str:
        start = self.frames.index(_ID, len(self.frames) - self.last_size - 2) + len(_ID)
        return self.frames[start : self.frames.index(b"\r", start)].decode()


class NextEvent(NamedTuple):
    ticket: int
    id: int
    event_id: str
    type: str
    size: int
    traceparent: str
    created_at: datetime


class Move(NamedTuple):
    """A cursor's new place."""

    lane: int
    ticket: int
    id: int
    stream: str
    sequence: int
    attempts: int


class OutboxLog:
    def __init__(self, url: str) -> None:
        self.holder = 0
        self._url = url
        self._claims: psycopg.Connection[Any] | None = None
        self._work: psycopg.Connection[Any] | None = None

    # -- the connections --------------------------------------------------------------------------------------------

    @property
    def is_open(self) -> bool:
        return self._work is not None

    def open(self) -> None:
        """Connect, and be counted among the relays."""
        # Another one each time: what happened to our lanes since the last connection broke, we do not know.
        self.holder = secrets.randbits(62)
        self._work = self._connect("relay", autocommit=True)
        self._work.execute(PLANNING)
        self._execute("announce_relay")
        self._claims = self._connect("relay-claims", autocommit=False)
        self._claims.execute("set idle_in_transaction_session_timeout = 0")
        self._claims.commit()

    def _connect(self, name: str, *, autocommit: bool) -> psycopg.Connection[Any]:
        connection = psycopg.connect(
            self._url,
            autocommit=autocommit,
            application_name=f"{APPLICATION}-{name}",
            connect_timeout=CONNECT_SECONDS,
            **KEEPALIVES,
        )
        connection.execute(SERVER_KEEPALIVES)
        return connection

    def close(self) -> None:
        """Let go of everything, at once."""
        for connection in (self._claims, self._work):
            if connection is not None:
                with suppress(psycopg.Error):
                    connection.close()
        self._claims = self._work = None

    # -- what there is ----------------------------------------------------------------------------------------------

    def pulse(self) -> int:
        """A number that rises with whatever is emitted: as long as it stays, there is nothing new."""
        return int(self._fetch("pulse")[0].ticket)

    def horizon(self) -> Horizon:
        rows = self._fetch("horizon")
        head = everyone = rows[0].ticket
        lanes: dict[int, int] = {}
        for lane, ticket, _ in rows[1:]:
            if lane == EVERY_LANE:
                everyone = min(everyone, ticket)
            else:
                lanes[lane] = min(ticket, lanes.get(lane, ticket))
        return Horizon(head, everyone, lanes)

    def waiting(self, horizon: Horizon, but: Iterable[str]) -> set[tuple[str, str]]:
        """Tenants and channels that have something to publish, other than of these."""
        parameters = {
            "lanes": list(horizon.lanes),
            "tickets": list(horizon.lanes.values()),
            "horizon": horizon.ticket,
            "but": list(but),
        }
        return {(row.tenant_id, row.channel) for row in self._fetch("waiting_lanes", parameters)}

    def relays(self) -> int:
        return int(self._fetch("count_relays")[0].relays)

    # -- turns ------------------------------------------------------------------------------------------------------

    def claim(self, tenants: Sequence[str], limit: int) -> tuple[list[Turn], list[Cursor]]:
        """Take turns that nobody has, until `release`; and with them the lanes as they are now."""
        assert self._claims is not None
        with self._claims.cursor(row_factory=namedtuple_row) as cursor:
            cursor.execute(_sql.text("claim_turns"), {"tenants": list(tenants), "limit": limit})
            turns = [Turn(*row) for row in cursor.fetchall()]
        if not turns:
            return [], []
        taken = {"tenants": [turn.tenant_id for turn in turns], "holder": self.holder}
        return turns, [Cursor(*row) for row in self._fetch("claim_lanes", taken)]

    def release(self, tokens: dict[str, float]) -> None:
        """Let others have the turns; `tokens` is what some tenants have left of their rate."""
        assert self._claims is not None
        if tokens:
            noted = {"tenants": list(tokens), "tokens": list(tokens.values())}
            self._claims.execute(_sql.text("note_tokens"), noted)
        self._claims.commit()

    # -- events -----------------------------------------------------------------------------------------------------

    def read(self, requests: Sequence[Request]) -> list[Frames]:
        columns = list(zip(*requests, strict=True))
        names = ["lanes", "tickets", "ids", "horizons", "quotas", "sizes", "prefixes", "id_prefixes", "inboxes"]
        names += ["replies", "chained", "previous", "sequences", "starts"]
        parameters = {name: list(column) for name, column in zip(names, columns, strict=True)}
        assert self._work is not None
        with self._work.cursor(binary=True) as cursor:
            cursor.execute(_sql.text("read_frames"), parameters, prepare=True)
            return [Frames(*row) for row in cursor.fetchall()]

    def next_event(self, cursor: Cursor, after: Position, horizon: int) -> NextEvent | None:
        rows = self._fetch("next_event", _range(cursor, after, horizon))
        return NextEvent(*rows[0]) if rows else None

    def next_ids(self, cursor: Cursor, after: Position, horizon: int, limit: int) -> list[tuple[Position, str]]:
        rows = self._fetch("next_ids", _range(cursor, after, horizon) | {"limit": limit})
        return [(Position(row.ticket, row.id), row.event_id) for row in rows]

    # -- progress ---------------------------------------------------------------------------------------------------

    def move(self, moves: Sequence[Move]) -> set[int]:
        """Move cursors, and say which were still ours to move."""
        columns = list(zip(*moves, strict=True))
        names = ("lanes", "tickets", "ids", "streams", "sequences", "attempts")
        parameters: dict[str, Any] = {name: list(column) for name, column in zip(names, columns, strict=True)}
        return {row.lane for row in self._fetch("move_cursors", parameters | {"holder": self.holder})}

    def put_off(self, lane: int, attempts: int, seconds: float, error: str) -> None:
        """Leave the next event of a lane for later."""
        self._execute(
            "put_off",
            {"lane": lane, "attempts": attempts, "seconds": seconds, "error": error[:1000], "holder": self.holder},
        )

    def bury(self, lane: int, event: NextEvent, attempts: int, reason: str) -> bool:
        """Move an event to the dead letters and the cursor past it, if that is still ours to do."""
        buried = self._fetch(
            "bury",
            {
                "lane": lane,
                "ticket": event.ticket,
                "id": event.id,
                "attempts": attempts,
                "reason": reason[:1000],
                "holder": self.holder,
            },
        )
        return bool(buried)

    def _fetch(self, name: str, parameters: dict[str, Any] | None = None) -> list[Any]:
        assert self._work is not None
        with self._work.cursor(row_factory=namedtuple_row) as cursor:
            cursor.execute(_sql.text(name), parameters, prepare=True)
            return cursor.fetchall()

    def _execute(self, name: str, parameters: dict[str, Any] | None = None) -> None:
        assert self._work is not None
        self._work.execute(_sql.text(name), parameters)


def _range(cursor: Cursor, after: Position, horizon: int) -> dict[str, Any]:
    return after._asdict() | {"lane": cursor.lane, "horizon": horizon, "starts_at": cursor.starts_at}
