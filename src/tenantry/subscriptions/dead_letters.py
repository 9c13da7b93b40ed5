"""Events that could not be handled, as they were, with the reason; and those that wait for them."""

from __future__ import annotations

import traceback
from datetime import UTC, datetime
from typing import Any, Final, Literal, NamedTuple
from uuid import UUID

from psycopg.types.json import Jsonb

from tenantry.nats.feed import Handed
from tenantry.postgres.pool import Pool
from tenantry.postgres.queries import SqlFolder
from tenantry.subscriptions.database import PATIENCE_SECONDS
from tenantry.subscriptions.parcel import Parcel
from tenantry.subscriptions.spreading import ACCOUNTS, Partition

State = Literal["dead", "parked", "held", "stopped"]

LONGEST_REASON: Final = 2_000
LONGEST_TRACEBACK: Final = 20_000

_sql = SqlFolder("tenantry.subscriptions")


class Death(NamedTuple):
    """Why an event is not handled, and what that means for those after it."""

    reason: str
    traceback: str = ""
    event_id: str | None = None
    type: str | None = None
    key: str | None = None
    trace: str | None = None
    state: State = "dead"

    @classmethod
    def of(cls, problem: BaseException, **known: Any) -> Death:
        said = "".join(traceback.format_exception(problem))
        reason = f"{type(problem).__name__}: {problem}" if str(problem) else type(problem).__name__
        return cls(_storable(reason, LONGEST_REASON), _storable(said[-LONGEST_TRACEBACK:], LONGEST_TRACEBACK), **known)


class DeadLetter(NamedTuple):
    """One that is to be handled again, or dropped."""

    id: UUID
    job: UUID
    kind: Literal["redrive", "discard"]
    partition: Partition
    state: State
    key: str | None
    message: Handed


class Blocked(NamedTuple):
    """What of a partition waits for dead letters."""

    keys: dict[str, int]
    """How many events of each key."""
    stopped_at: int | None
    """The sequence at which everything waits."""


class DeadLetters:
    """The store of them, as workers use it."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    async def bury(
        self, partition: Partition, channel: str, parcel: Parcel, death: Death, job: UUID | None = None
    ) -> None:
        """Once, however often it is done; what is known of it is what was learnt last. A `job` is to handle it then."""
        message = parcel.message
        row = {
            "tenant": partition.tenant,
            # An account of somebody else's may have the name of one of our tenants.
            "is_ours": partition.service != ACCOUNTS,
            "channel": channel,
            "service": partition.service,
            "part": partition.part,
            "sequence": message.sequence,
            "subject": _storable(parcel.subject, 4096),
            "payload": message.payload,
            "headers": Jsonb(
                {
                    _storable(name, 256): [_storable(value, 4096) for value in values]
                    for name, values in parcel.headers.items()
                }
            ),
            "reason": _storable(death.reason, LONGEST_REASON),
            "traceback": death.traceback,
            "deliveries": parcel.attempt,
            "event_id": death.event_id and _storable(death.event_id, 256),
            "type": death.type and _storable(death.type, 256),
            "key": death.key,
            "trace": death.trace and _storable(death.trace, 256),
            "state": death.state,
            "job": job,
            "published_at": datetime.fromtimestamp(message.stored_at / 1e9, UTC),
        }
        async with self._pool.connection(PATIENCE_SECONDS) as connection, connection.transaction():
            await _sql.execute(connection, "bury", row)
            if job is not None:
                await _sql.execute(connection, "add_to_job", {"job": job})

    async def blocked(self, partitions: list[Partition]) -> dict[Partition, Blocked]:
        """What waits, of those partitions of which something does."""
        found: dict[Partition, Blocked] = {}
        async with self._pool.connection(PATIENCE_SECONDS) as connection:
            for row in await _sql.fetch_all(connection, "blocked", _columns(partitions)):
                partition = Partition(row["service"], row["tenant_id"], row["part"])
                blocked = found.setdefault(partition, Blocked({}, None))
                if row["state"] == "stopped":
                    found[partition] = blocked._replace(stopped_at=row["sequence"])
                elif row["key"] is not None:
                    blocked.keys[row["key"]] = row["count"]
        return found

    async def asked_for(self, partitions: list[Partition], limit: int) -> list[DeadLetter]:
        """Those that somebody wants handled again or dropped, the oldest of each partition first."""
        async with self._pool.connection(PATIENCE_SECONDS) as connection:
            await _sql.execute(connection, "end_redrive")
            rows = await _sql.fetch_all(connection, "asked_for", _columns(partitions) | {"limit": limit})
        return [_letter(row) for row in rows]

    async def settle(self, letter: DeadLetter) -> int:
        """It was handled, or dropped; how many of its key are left."""
        async with self._pool.connection(PATIENCE_SECONDS) as connection, connection.transaction():
            row = await _sql.fetch_one(connection, "settle_letter", {"id": letter.id, "job": letter.job})
            await _sql.execute(connection, "end_redrive")
        return int(row["left"]) if row else 0

    async def failed_again(self, letter: DeadLetter, death: Death) -> None:
        """It stays; and what was to follow it in the same job stays, too, if order says so."""
        said = {"id": letter.id, "job": letter.job, "reason": death.reason, "traceback": death.traceback}
        async with self._pool.connection(PATIENCE_SECONDS) as connection, connection.transaction():
            await _sql.execute(connection, "failed_again", said)
            await _sql.execute(connection, "end_redrive")


def _letter(row: dict[str, Any]) -> DeadLetter:
    headers = "".join(f"{name}: {value}\r\n" for name, values in row["headers"].items() for value in values)
    message = Handed(
        subject=row["subject"].encode(),
        header=f"NATS/1.0\r\n{headers}\r\n".encode() if headers else b"",
        payload=bytes(row["payload"]),
        reply=b"",
        sequence=row["sequence"],
        deliveries=row["deliveries"] + 1,
        stored_at=round(row["published_at"].timestamp() * 1e9),
        pending=0,
    )
    partition = Partition(row["service"], row["tenant_id"], row["part"])
    return DeadLetter(row["id"], row["job"], row["kind"], partition, row["state"], row["key"], message)


def _columns(partitions: list[Partition]) -> dict[str, list[Any]]:
    services, tenants, parts = zip(*partitions, strict=True)
    return {"services": list(services), "tenants": list(tenants), "parts": list(parts)}


def _storable(text: str, longest: int) -> str:
    """PostgreSQL keeps no text with a zero character in it."""
    return text[:longest].replace("\0", "\N{REPLACEMENT CHARACTER}").encode(errors="replace").decode()
