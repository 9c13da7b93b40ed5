"""Emitting events in a transaction of your own: they come to exist when it commits, and never if it does not.

    emit(connection, "acme", "order.created", {"order": 7})          # psycopg, SQLAlchemy
    await emit(connection, "acme", "order.created", {"order": 7})    # their asynchronous kinds, and asyncpg

The work is done by functions in the database, `tenantry.emit` and `tenantry.emit_many`; this calls them well.
"""

from __future__ import annotations

from collections.abc import Awaitable, Iterable, Mapping
from datetime import datetime
from typing import Any, Protocol, TypedDict, Unpack, overload

from tenantry.event import Extension
from tenantry.outbox.emission import Emission, arguments, encode_many, join, read
from tenantry.outbox.emit_drivers import call
from tenantry.outbox.emit_trace import current_trace


class Connection(Protocol):
    """psycopg: Connection, Cursor. SQLAlchemy: Connection, Session, scoped_session."""

    def close(self) -> None: ...


class AsyncConnection(Protocol):
    """psycopg: AsyncConnection, AsyncCursor. SQLAlchemy: AsyncConnection, AsyncSession. asyncpg: Connection."""

    def close(self) -> Awaitable[None]: ...


class Attributes(TypedDict, total=False):
    """What may be said of an event besides its tenant, type and data."""

    channel: str
    id: str | None
    source: str | None
    subject: str | None
    time: datetime | None
    dataschema: str | None
    traceparent: str | None
    tracestate: str | None
    extensions: Mapping[str, Extension] | None


@overload
def emit(connection: Connection, tenant: str, type: str, data: Any = None, **attributes: Unpack[Attributes]) -> str: ...


@overload
def emit(
    connection: AsyncConnection, tenant: str, type: str, data: Any = None, **attributes: Unpack[Attributes]
) -> Awaitable[str]: ...


def emit(connection: Any, tenant: str, type: str, data: Any = None, **attributes: Unpack[Attributes]) -> Any:
    """Emit an event in the connection's transaction; its id, or an awaitable of it if the connection is asynchronous.

    `data` is whatever msgspec can write as JSON. None is no data; JSON that is written already, a null among it, is
    `msgspec.Raw(b"null")`. The attributes are `channel` ("events"), `id`, `source`, `subject`, `time`, `dataschema`,
    `traceparent`, `tracestate` and `extensions`. An event without a trace joins OpenTelemetry's current span.

    EventInvalid, TenantNotFound and TenantConflict say why the database refused an event. As after any error of the
    database, the transaction is then good for nothing but a rollback, be it to a savepoint.
    """
    emission = Emission(tenant, type, data, **attributes)
    return call(connection, "emit", arguments(join(emission, current_trace())))


@overload
def emit_many(connection: Connection, events: Iterable[Emission | Mapping[str, Any]]) -> list[str]: ...


@overload
def emit_many(connection: AsyncConnection, events: Iterable[Emission | Mapping[str, Any]]) -> Awaitable[list[str]]: ...


def emit_many(connection: Any, events: Iterable[Emission | Mapping[str, Any]]) -> Any:
    """Emit many events in one round trip, all or none, in their order; their ids. Else it is like `emit`.

    An event is an `Emission`, or a mapping with the names of its fields. All are in memory at once, more than one time,
    so a call is for thousands, and a million is for many calls in one transaction.
    """
    trace = current_trace()
    emissions = [join(each if isinstance(each, Emission) else read(each), trace) for each in events]
    return call(connection, "emit_many", {"events": encode_many(emissions)})
