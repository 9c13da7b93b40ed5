"""The audit log: every administrative act with who did it, before and after, sealed in a chain.

Each row's seal covers the row and the seal before it, under a key that is not in the database. So a row that was
changed, removed or put in between is found, even if whoever did it can write to the database.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import AsyncIterator, Mapping
from datetime import UTC, datetime
from typing import Any, Final

import msgspec
from psycopg.rows import DictRow
from psycopg.types.json import Jsonb

from tenantry.errors import AuditBroken
from tenantry.postgres.pool import Pool
from tenantry.postgres.queries import Connection, SqlFolder

PAGE: Final = 1000

_sql = SqlFolder("tenantry.tenants")
_encode = msgspec.json.Encoder(order="sorted").encode

Document = Mapping[str, Any] | None


class AuditEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One act."""

    number: int
    at: datetime
    actor: str
    act: str
    tenant_id: str | None
    before: dict[str, Any] | None
    after: dict[str, Any] | None
    seal: str


class Seal(msgspec.Struct, frozen=True):
    """The newest row's number and seal: written down elsewhere, it proves later that no row was cut off the end."""

    number: int
    seal: str

    def __str__(self) -> str:
        return f"{self.number}:{self.seal}"

    @classmethod
    def read(cls, text: str) -> Seal:
        number, _, seal = text.strip().partition(":")
        if not (number.isdecimal() and int(number) > 0 and re.fullmatch("[0-9a-f]{64}", seal)):
            raise AuditBroken(f"expected a seal as `tenantry audit verify` prints it, NUMBER:SEAL, got: {text[:80]!r}")
        return cls(int(number), seal)


class AuditLog:
    def __init__(self, pool: Pool, key: bytes) -> None:
        self._pool = pool
        self._key = key

    async def append(
        self,
        connection: Connection,
        actor: str,
        act: str,
        tenant: str | None = None,
        *,
        before: Document = None,
        after: Document = None,
    ) -> None:
        """Record an act in the transaction that does it; call it last, for it holds up others until the commit."""
        head = await _sql.fetch_one(connection, "lock_audit_head")
        if head is None:
            raise AuditBroken("the audit log has lost its head; restore the database from a backup")
        row = {
            "number": head["number"] + 1,
            "at": datetime.now(UTC),
            "actor": actor,
            "act": act,
            "tenant_id": tenant,
            "before": _plain(before),
            "after": _plain(after),
            "previous": head["mac"],
        }
        row["mac"] = self._seal(row)
        await _sql.execute(
            connection, "append_audit", row | {"before": _json(row["before"]), "after": _json(row["after"])}
        )

    async def newest(
        self, limit: int = 50, *, tenant: str | None = None, before: int | None = None
    ) -> list[AuditEntry]:
        """The newest entries first; `before` pages on to older ones."""
        async with self._pool.connection() as connection:
            parameters = {"tenant_id": tenant, "before_number": before, "limit": limit}
            return [_entry(row) for row in await _sql.fetch_all(connection, "audit_newest", parameters)]

    async def verify(self, expected: str = "") -> Seal:
        """Check every row; AuditBroken names the first that is not as it was written. Returns the newest seal.

        `expected` is a seal that an earlier call returned: the log must still contain it.
        """
        number, previous = 0, b""
        awaited = Seal.read(expected) if expected else None
        async for row in self._rows():
            if row["number"] != number + 1:
                raise AuditBroken(f"audit row {number + 1} is missing")
            if row["previous"] != previous or not hmac.compare_digest(self._seal(row), row["mac"]):
                raise AuditBroken(
                    f"audit row {row['number']} is not what was written: {row['act']} by {row['actor']}; "
                    "it was changed, or the master secret is another one than the log was sealed with"
                )
            number, previous = row["number"], row["mac"]
            if awaited and number == awaited.number and awaited.seal != previous.hex():
                raise AuditBroken(f"audit row {number} has another seal than the one that was expected")
        if awaited and awaited.number > number:
            raise AuditBroken(f"the audit log ends at row {number} and was expected to contain {expected}")
        async with self._pool.connection() as connection:
            head = await _sql.fetch_one(connection, "audit_head")
        if head is None or head["number"] < number or (head["number"] == number and head["mac"] != previous):
            raise AuditBroken(f"the audit log ends at row {number}, and its head says otherwise")
        if head["number"] > number and not await self._grew_since(number):
            raise AuditBroken(
                f"the audit log ends at row {number}, and its head says {head['number']}: rows were cut off"
            )
        return Seal(number, previous.hex())

    async def _grew_since(self, number: int) -> bool:
        """Whether the rows after `number` are there by now: others append while we read."""
        async with self._pool.connection() as connection:
            row = await _sql.fetch_one(connection, "audit_page", {"after_number": number, "limit": 1})
        return row is not None and row["number"] == number + 1

    async def _rows(self) -> AsyncIterator[DictRow]:
        after = 0
        while True:
            async with self._pool.connection() as connection:
                page = await _sql.fetch_all(connection, "audit_page", {"after_number": after, "limit": PAGE})
            for row in page:
                yield row
            if len(page) < PAGE:
                return
            after = page[-1]["number"]

    def _seal(self, row: Mapping[str, Any]) -> bytes:
        sealed = {name: row[name] for name in ("number", "actor", "act", "tenant_id", "before", "after")} | {
            "at": row["at"].astimezone(UTC).isoformat()
        }
        return hmac.digest(self._key, bytes(row["previous"]) + _encode(sealed), hashlib.sha256)


def _plain(document: Document) -> dict[str, Any] | None:
    return None if document is None else msgspec.json.decode(msgspec.json.encode(dict(document)))


def _json(document: dict[str, Any] | None) -> Jsonb | None:
    return None if document is None else Jsonb(document)


def _entry(row: DictRow) -> AuditEntry:
    fields = {name: row[name] for name in ("number", "at", "actor", "act", "tenant_id", "before", "after")}
    return AuditEntry(**fields, seal=row["mac"].hex())
