"""Why the database refused an event, in our own words, whichever driver says so."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from tenantry.errors import (
    DatabaseError,
    EventInvalid,
    SchemaTooOld,
    TenantConflict,
    TenantNotFound,
    TenantryError,
    WorkerFenced,
)


@dataclass(frozen=True, slots=True)
class _Refusal:
    """An error as PostgreSQL reports it: https://www.postgresql.org/docs/current/protocol-error-fields.html"""

    code: str
    message: str
    hint: str
    column: str


@contextmanager
def explained() -> Iterator[None]:
    """Errors of the outbox leave the block as ours, others as they are."""
    try:
        yield
    except Exception as error:
        refusal = _find_refusal(error)
        problem = _explain(refusal) if refusal else None
        if problem is None:
            raise
        raise problem from error


def _explain(refusal: _Refusal) -> TenantryError | None:
    said = f"{refusal.message}. {refusal.hint}" if refusal.hint else refusal.message
    match refusal.code:
        case "TY404":
            return TenantNotFound(said)
        case "TY409":
            return TenantConflict(said)
        case "TY423":
            return WorkerFenced(said)
        case "TY413" | "TY422":
            return EventInvalid(refusal.column, said)
        case "22P05" | "22021":
            return EventInvalid(
                "data", "expected texts to be without the character U+0000: PostgreSQL has no place for it"
            )
        case "22P02" if "json" in refusal.message:
            return EventInvalid("data", f"expected JSON, got: {said}")
        case "3F000" | "42883":
            return SchemaTooOld(
                f"{refusal.message}: this database has no outbox; run `tenantry migrate --outbox-only` with its "
                "address as DATABASE_URL"
            )
        case "42501":
            return DatabaseError(f"{refusal.message}; a role that emits needs `grant usage on schema tenantry`")
    return None


def _find_refusal(error: BaseException | None) -> _Refusal | None:
    """What the server said, be it wrapped or not: SQLAlchemy keeps the driver's error in `orig` or as the cause."""
    seen: list[BaseException] = []
    while error is not None and error not in seen:
        seen.append(error)
        if refusal := _read_diagnosis(error) or _read_attributes(error):
            return refusal
        error = getattr(error, "orig", None) or error.__cause__
    return None


def _read_diagnosis(error: Any) -> _Refusal | None:
    """psycopg, psycopg2."""
    said = getattr(error, "diag", None)
    if said is None or not said.sqlstate:
        return None
    return _Refusal(said.sqlstate, said.message_primary or "", said.message_hint or "", said.column_name or "")


def _read_attributes(error: Any) -> _Refusal | None:
    """asyncpg."""
    if not (getattr(error, "sqlstate", None) and hasattr(error, "column_name")):
        return None
    message = getattr(error, "message", None) or str(error)
    return _Refusal(error.sqlstate, message, error.hint or "", error.column_name or "")
