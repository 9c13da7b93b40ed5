"""Emitting through every kind of connection, against a real database."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any, assert_type
from uuid import UUID

import asyncpg  # type: ignore[import-untyped]
import msgspec
import psycopg
import pytest
import sqlalchemy
import sqlalchemy.ext.asyncio
from opentelemetry import trace
from psycopg.rows import class_row, dict_row, namedtuple_row
from sqlalchemy.orm import Session

from tenantry.errors import EventInvalid, SchemaTooOld, TenantConflict, TenantNotFound
from tenantry.outbox import Emission, emit, emit_many
from tests.outbox.own_database import OwnDatabase, make_own_database
from tests.outbox.ways_to_emit import WAYS, Way, settle

TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"

DRIVER_ERRORS = (psycopg.Error, asyncpg.PostgresError, sqlalchemy.exc.DBAPIError)

each_way = pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)


@pytest.fixture
async def outbox(database: str) -> OwnDatabase:
    return await make_own_database(database)


@pytest.fixture
def connection(outbox: OwnDatabase) -> Iterator[psycopg.Connection[tuple[Any, ...]]]:
    with psycopg.connect(outbox.url, autocommit=True) as opened:
        yield opened


@each_way
async def test_a_committed_event_is_in_the_outbox_as_a_cloud_event(outbox: OwnDatabase, way: Way) -> None:
    moment = datetime(2026, 1, 31, 8, 0, 0, 250, tzinfo=UTC)
    async with way(outbox.url) as transaction:
        id = await settle(
            emit(
                transaction.connection,
                "acme",
                "order.created",
                {"order": 7, "name": "Blåbær 🫐"},
                channel="orders",
                source="/shop",
                subject='order "7"',
                time=moment,
                dataschema="https://example.com/order.json",
                traceparent=TRACE,
                tracestate="vendor=1",
                extensions={"region": "eu", "attempt": 2, "test": True},
            )
        )
        assert outbox.rows() == []
        await settle(transaction.commit())
    (row,) = outbox.rows()
    assert (row["tenant_id"], row["channel"], row["type"]) == ("acme", "orders", "order.created")
    assert (row["event_id"], row["traceparent"], row["tracestate"]) == (id, TRACE, "vendor=1")
    event = outbox.event()
    assert (event.id, event.source, event.type, event.subject) == (id, "/shop", "order.created", 'order "7"')
    assert (event.time, event.dataschema) == (moment, "https://example.com/order.json")
    assert event.datacontenttype == "application/json"
    assert json.loads(bytes(event.data)) == {"order": 7, "name": "Blåbær 🫐"}
    assert event.extensions == {
        "tenantid": "acme",
        "traceparent": TRACE,
        "tracestate": "vendor=1",
        "region": "eu",
        "attempt": 2,
        "test": True,
    }


@each_way
async def test_what_is_rolled_back_was_never_emitted(outbox: OwnDatabase, way: Way) -> None:
    async with way(outbox.url) as transaction:
        await settle(emit(transaction.connection, "acme", "order.created"))
        await settle(emit_many(transaction.connection, [Emission("acme", "order.paid")]))
        await settle(transaction.rollback())
    assert outbox.rows() == []


@each_way
async def test_many_are_emitted_in_their_order(outbox: OwnDatabase, way: Way) -> None:
    events: list[Emission | dict[str, Any]] = [
        Emission("acme" if number % 3 else "globex", "order.created", {"number": number}, id=f"e{number}")
        if number % 2
        else {"tenant": "acme", "type": "order.paid", "channel": "orders", "data": {"number": number}}
        for number in range(2000)
    ]
    async with way(outbox.url) as transaction:
        ids = await settle(emit_many(transaction.connection, events))
        assert await settle(emit_many(transaction.connection, [])) == []
        await settle(transaction.commit())
    rows = outbox.rows()
    assert [row["event_id"] for row in rows] == ids
    assert [json.loads(row["document"])["data"]["number"] for row in rows] == list(range(2000))
    assert ids[1::2] == [f"e{number}" for number in range(1, 2000, 2)]
    assert len(set(ids)) == 2000
    assert {UUID(id).version for id in ids[::2]} == {4}
    # One ticket for each of the three lanes: the transaction's place in each.
    assert len({(row["lane"], row["ticket"]) for row in rows}) == 3


@each_way
async def test_each_refusal_says_why_and_the_transaction_can_be_rolled_back(outbox: OwnDatabase, way: Way) -> None:
    refused: list[tuple[type[Exception], str, tuple[str, str, Any], dict[str, Any]]] = [
        (TenantNotFound, "there is no tenant 'nobody'.*tenantry tenant create", ("nobody", "a", None), {}),
        (TenantNotFound, "acme has no channel 'audit'.*--channel", ("acme", "a", None), {"channel": "audit"}),
        (EventInvalid, "expected type to be words .* got: 'a b'", ("acme", "a b", None), {}),
        (EventInvalid, "at most 100000 bytes with its headers for tenant acme", ("acme", "a", "x" * 100_000), {}),
        (EventInvalid, "without the character U.0000", ("acme", "a", {"text": "\0"}), {}),
    ]
    for kind, words, positional, named in refused:
        async with way(outbox.url) as transaction:
            with pytest.raises(kind, match=words) as caught:
                await settle(emit(transaction.connection, *positional, **named))
            assert isinstance(caught.value.__cause__, DRIVER_ERRORS)
            await settle(transaction.rollback())
    async with way(outbox.url) as transaction:
        with pytest.raises(EventInvalid, match=r"expected id to be 1 to 256 printable.*event 2 of 3") as invalid:
            await settle(emit_many(transaction.connection, [Emission("acme", "a", id=id) for id in ("1", "", "3")]))
        assert invalid.value.field == "id"
        await settle(transaction.rollback())
    assert outbox.rows() == []


@each_way
async def test_a_database_without_the_outbox_is_told_what_to_run(database: str, way: Way) -> None:
    async with way(database) as transaction:
        with pytest.raises(SchemaTooOld, match="run `tenantry migrate --outbox-only`"):
            await settle(emit(transaction.connection, "acme", "a"))
        aborted = (
            psycopg.errors.InFailedSqlTransaction,
            asyncpg.InFailedSQLTransactionError,
            sqlalchemy.exc.DBAPIError,
        )
        with pytest.raises(aborted):
            await settle(emit(transaction.connection, "acme", "a"))
        await settle(transaction.rollback())


def test_a_thousand_events_are_one_statement(outbox: OwnDatabase) -> None:
    engine = sqlalchemy.create_engine(outbox.url.replace("postgresql://", "postgresql+psycopg://"))
    statements: list[str] = []
    sqlalchemy.event.listen(engine, "before_cursor_execute", lambda *args: statements.append(args[2]))
    with engine.begin() as connection:
        emit_many(connection, (Emission("acme", "a", number) for number in range(1000)))
    engine.dispose()
    assert len(statements) == 1
    assert len(outbox.rows()) == 1000


def test_something_else_than_a_connection_is_refused_with_what_is_taken() -> None:
    for nothing in (None, "postgresql://", sqlalchemy.create_engine("postgresql+psycopg://")):
        with pytest.raises(TypeError, match=r"expected a connection, one of psycopg.Connection, .*asyncpg.*, got: "):
            emit(nothing, "acme", "a")  # type: ignore[call-overload]


@pytest.mark.parametrize("factory", [dict_row, namedtuple_row, class_row(dict)], ids=["dict", "namedtuple", "class"])
def test_psycopg_may_make_whatever_rows_and_cursors(outbox: OwnDatabase, factory: Any) -> None:
    for cursors in (psycopg.Cursor, psycopg.ClientCursor, psycopg.RawCursor):
        with psycopg.connect(outbox.url, row_factory=factory, cursor_factory=cursors) as connection:
            assert emit(connection, "acme", "a", id="mine") == "mine"
    assert len(outbox.rows()) == 3


@pytest.mark.parametrize("threshold", [None, 0, 1], ids=["never", "at once", "second"])
def test_psycopg_with_and_without_prepared_statements(outbox: OwnDatabase, threshold: int | None) -> None:
    with psycopg.connect(outbox.url, prepare_threshold=threshold) as connection:
        for number in range(10):
            emit(connection, "acme", "a", number)
    assert [bytes(event.data) for event in outbox.events()] == [b"%d" % number for number in range(10)]


def test_psycopg_in_pipeline_mode(outbox: OwnDatabase) -> None:
    with psycopg.connect(outbox.url) as connection, connection.pipeline():
        assert [emit(connection, "acme", "a", id=id) for id in ("1", "2")] == ["1", "2"]
        assert emit_many(connection, [Emission("acme", "a", id="3")]) == ["3"]
    assert [row["event_id"] for row in outbox.rows()] == ["1", "2", "3"]
    with (
        pytest.raises(TenantNotFound),
        psycopg.connect(outbox.url) as connection,
        connection.pipeline(),
    ):
        emit(connection, "nobody", "a")


def test_in_autocommit_mode_an_event_is_committed_by_itself(
    outbox: OwnDatabase, connection: psycopg.Connection[Any]
) -> None:
    emit(connection, "acme", "a")
    assert len(outbox.rows()) == 1
    with pytest.raises(TenantNotFound):
        emit(connection, "nobody", "a")
    emit(connection, "acme", "a")
    assert len(outbox.rows()) == 2


def test_a_savepoint_takes_back_only_what_came_after_it(outbox: OwnDatabase) -> None:
    with psycopg.connect(outbox.url) as connection:
        emit(connection, "acme", "a", id="before")
        with pytest.raises(TenantNotFound), connection.transaction():
            _ = [emit(connection, tenant, "a", id="undone") for tenant in ("globex", "nobody")]
        emit(connection, "globex", "a", id="after")
    assert [row["event_id"] for row in outbox.rows()] == ["before", "after"]


async def test_asyncpg_may_have_codecs_of_its_own(outbox: OwnDatabase) -> None:
    connection = await asyncpg.connect(outbox.url)
    await connection.set_type_codec("jsonb", schema="pg_catalog", encoder=json.dumps, decoder=json.loads)
    await emit(connection, "acme", "a", {"n": 1}, extensions={"k": "v"}, time=datetime.now(UTC))
    await emit_many(connection, [Emission("acme", "a", {"n": 2})])
    await connection.close()
    assert [json.loads(bytes(event.data)) for event in outbox.events()] == [{"n": 1}, {"n": 2}]


class Colour(msgspec.Struct):
    red: int
    name: str | None = None


WRITTEN: list[tuple[Any, bytes]] = [
    (7, b"7"),
    (2**70, b"1180591620717411303424"),
    (-0.25, b"-0.25"),
    (True, b"true"),
    ("", b'""'),
    ([], b"[]"),
    ({"nothing": None}, b'{"nothing": null}'),
    ('\u2028 " \\ \\u0000 </script>', '"\u2028 \\" \\\\ \\\\u0000 </script>"'.encode()),
    (Colour(1), b'{"red": 1, "name": null}'),
    (datetime(2026, 1, 31, tzinfo=UTC), b'"2026-01-31T00:00:00Z"'),
    (msgspec.Raw(b'{"written": [1e2]}'), b'{"written": [100]}'),
    (msgspec.Raw(b"null"), b"null"),
    ({"raw": msgspec.Raw(b"null")}, b'{"raw": null}'),
]


def test_data_is_what_json_can_hold(outbox: OwnDatabase, connection: psycopg.Connection[Any]) -> None:
    for data, _ in WRITTEN:
        emit(connection, "acme", "a", data)
    emit_many(connection, [Emission("acme", "a", data) for data, _ in WRITTEN])
    assert [bytes(event.data) for event in outbox.events()] == [written for _, written in WRITTEN] * 2


def test_no_data_is_not_a_null(outbox: OwnDatabase, connection: psycopg.Connection[Any]) -> None:
    emit(connection, "acme", "a")
    emit_many(connection, [Emission("acme", "a"), {"tenant": "acme", "type": "a", "data": None}])
    for row in outbox.rows():
        assert not {"data", "datacontenttype"} & json.loads(row["document"]).keys()


UNWRITABLE: list[tuple[Any, str]] = [
    (float("nan"), "expected numbers in data to be finite, got: NaN or infinity"),
    ({"deep": [1, {"er": float("-inf")}]}, "to be finite"),
    ({"raw": msgspec.Raw(b"1"), "n": float("inf")}, "to be finite"),
    (object(), "expected data to be what JSON can hold: Encoding objects of type object is unsupported"),
    ("\ud800", "expected data to be what JSON can hold"),
    (msgspec.Raw(b'{"a":'), "expected JSON, got: invalid input syntax for type json"),
]


def test_data_that_json_cannot_hold_is_refused(connection: psycopg.Connection[Any], subtests: pytest.Subtests) -> None:
    for data, words in UNWRITABLE:
        with subtests.test(repr(data)):
            with pytest.raises(EventInvalid, match=words) as caught:
                emit(connection, "acme", "a", data)
            assert caught.value.field == "data"
            with pytest.raises(EventInvalid, match=words):
                emit_many(connection, [Emission("acme", "a", data)])


WRONG: list[tuple[str, str]] = [
    ("type", ""),
    ("type", "a..b"),
    ("type", "a" * 201),
    ("type", "ä"),
    ("id", ""),
    ("id", " "),
    ("id", "a\nb"),
    ("id", "a\u200bb"),
    ("id", "i" * 257),
    ("source", ""),
    ("traceparent", "00-1-2-3"),
    ("traceparent", TRACE.upper()),
    ("traceparent", TRACE.replace("319c-", "31-9c")),
    ("tracestate", ""),
    ("tracestate", "ä=1"),
    ("tracestate", "a" * 513),
    ("subject", "a\0b"),
]


def test_a_field_that_is_wrong_is_named(connection: psycopg.Connection[Any], subtests: pytest.Subtests) -> None:
    for field, value in WRONG:
        with subtests.test(f"{field} {value!r}"):
            emission: dict[str, Any] = {"tenant": "acme", "type": "a", "traceparent": TRACE} | {field: value}
            with pytest.raises(EventInvalid) as caught:
                emit(connection, **emission)
            assert caught.value.field == field
            with pytest.raises(EventInvalid):
                emit_many(connection, [emission])


WRONG_EXTENSIONS: list[dict[str, Any]] = [
    {"Upper": 1},
    {"with-dash": 1},
    {"a" * 21: 1},
    {"": 1},
    {"id": "x"},
    {"tenantid": "globex"},
    {"tenant": "globex"},
    {"data": "x"},
    {"half": 0.5},
    {"large": 2**31},
    {"nothing": None},
    {"list": [1]},
]


def test_extensions_are_what_cloud_events_allows(
    connection: psycopg.Connection[Any], subtests: pytest.Subtests
) -> None:
    for extensions in WRONG_EXTENSIONS:
        with subtests.test(str(extensions)):
            with pytest.raises(EventInvalid, match="expected extensions to be texts, whole numbers") as caught:
                emit(connection, "acme", "a", extensions=extensions)
            assert caught.value.field == next(iter(extensions))


def test_extensions_at_their_limits_are_taken(outbox: OwnDatabase, connection: psycopg.Connection[Any]) -> None:
    allowed: dict[str, Any] = {"a" * 20: 2**31 - 1, "least": -(2**31), "odd": "}", "quote": '"', "empty": ""}
    emit(connection, "acme", "a", extensions=allowed)
    emit(connection, "acme", "a", extensions={})
    emit_many(connection, [Emission("acme", "a", extensions=allowed)])
    first, second, third = outbox.events()
    assert allowed.items() <= first.extensions.items()
    assert second.extensions.keys() == {"tenantid", "traceparent"}
    assert third.extensions.keys() == first.extensions.keys()


def test_a_time_needs_its_zone(outbox: OwnDatabase, connection: psycopg.Connection[Any]) -> None:
    naive = datetime(2026, 1, 31)  # noqa: DTZ001
    for attempt in (
        lambda: emit(connection, "acme", "a", time=naive),
        lambda: emit_many(connection, [Emission("acme", "a", time=naive)]),
    ):
        with pytest.raises(EventInvalid, match="expected time to have a time zone, got: 2026-01-31T00:00:00") as caught:
            attempt()
        assert caught.value.field == "time"


def test_a_mapping_has_the_fields_of_an_emission(connection: psycopg.Connection[Any]) -> None:
    for mapping, field in (
        ({"tenant": "acme", "type": "a", "dta": 1}, "dta"),
        ({"tenant": "acme"}, "type"),
        ({"tenant": 7, "type": "a"}, "tenant"),
    ):
        with pytest.raises(EventInvalid, match="expected an emission: ") as caught:
            emit_many(connection, [mapping])
        assert caught.value.field == field
    with pytest.raises(TypeError, match="dta"):
        emit(connection, "acme", "a", dta=1)  # type: ignore[call-overload]


def test_an_event_goes_on_with_the_trace_of_the_current_span(
    outbox: OwnDatabase, connection: psycopg.Connection[Any]
) -> None:
    state = trace.TraceState([("vendor", "1")])
    span = trace.NonRecordingSpan(trace.SpanContext(0xABC, 0xDEF, False, trace.TraceFlags(1), state))
    own = Emission("acme", "a")
    with trace.use_span(span):
        emit(connection, "acme", "a")
        emit(connection, "acme", "a", traceparent=TRACE)
        emit_many(connection, [own, Emission("acme", "a", traceparent=TRACE)])
    assert own.traceparent is None
    parent = f"00-{0xABC:032x}-{0xDEF:016x}-01"
    told = [(row["traceparent"], row["tracestate"]) for row in outbox.rows()]
    assert told == [(parent, "vendor=1"), (TRACE, None)] * 2


def test_without_a_span_the_setting_of_the_session_or_a_new_trace_is_taken(
    outbox: OwnDatabase, connection: psycopg.Connection[Any]
) -> None:
    emit(connection, "acme", "a", id="1")
    emit_many(connection, [Emission("globex", "a", id="1"), Emission("acme", "a", id="1")])
    with connection.transaction():
        connection.execute("select set_config('tenantry.traceparent', %s, true)", [TRACE])
        emit(connection, "acme", "a")
        emit_many(connection, [Emission("acme", "a")])
    connection.execute("set tenantry.traceparent = '\"injected'")
    emit(connection, "acme", "a", id="1")
    first, second, third, fourth, fifth, sixth = (row["traceparent"] for row in outbox.rows())
    # Whoever emits an event again, in doubt, emits it into the same trace.
    assert first == third == sixth != second
    assert fourth == fifth == TRACE
    assert first.startswith("00-")
    assert outbox.events()[0].extensions["traceparent"] == first


def test_a_channel_that_is_being_deleted_takes_nothing(
    outbox: OwnDatabase, connection: psycopg.Connection[Any]
) -> None:
    connection.execute("update tenantry.outbox_lanes set is_open = false where channel = 'orders'")
    with pytest.raises(TenantConflict, match="channel 'orders' of tenant acme is being deleted"):
        emit(connection, "acme", "a", channel="orders")
    with pytest.raises(TenantConflict):
        emit_many(connection, [Emission("acme", "a"), Emission("acme", "a", channel="orders")])
    assert outbox.rows() == []


def test_the_largest_event_is_measured_with_its_headers(
    outbox: OwnDatabase, connection: psycopg.Connection[Any]
) -> None:
    outbox.add_lane("small", payload=1000)
    emit(connection, "small", "a", "", id="1", tracestate="k=v")
    (empty,) = outbox.rows()
    headers = ["NATS/1.0", "Nats-Msg-Id: small/1", f"traceparent: {empty['traceparent']}", "tracestate: k=v", "", ""]
    assert empty["size"] == len(empty["document"]) + len("\r\n".join(headers))
    room = "x" * (1000 - empty["size"])
    emit(connection, "small", "a", room, id="2", tracestate="k=v")
    emit_many(connection, [Emission("small", "a", room, id="3", tracestate="k=v")])
    with pytest.raises(EventInvalid, match=r"at most 1000 bytes .* got: 1001 bytes"):
        emit(connection, "small", "a", room + "x", id="4", tracestate="k=v")
    with pytest.raises(EventInvalid, match=r"at most 1000 bytes .* got: 1001 bytes"):
        emit_many(connection, [Emission("small", "a", room + "x", id="5", tracestate="k=v")])


def test_importing_it_loads_no_driver_and_nothing_of_the_platform() -> None:
    heavy = ("asyncio", "asyncpg", "nats", "nats_bulk", "opentelemetry", "psycopg", "pydantic", "sqlalchemy")
    script = f"import sys, tenantry.outbox; print([name for name in {heavy!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


async def _the_types_are_right(
    connection: psycopg.Connection[Any],
    cursor: psycopg.Cursor[Any],
    session: Session,
    asynchronous: psycopg.AsyncConnection[Any],
    asynchronous_session: sqlalchemy.ext.asyncio.AsyncSession,
) -> None:
    """For the type checker alone."""
    assert_type(emit(connection, "acme", "a", channel="orders"), str)
    assert_type(emit(cursor, "acme", "a"), str)
    assert_type(emit_many(session, [Emission("acme", "a")]), list[str])
    assert_type(await emit(asynchronous, "acme", "a"), str)
    assert_type(await emit_many(asynchronous_session, [{"tenant": "acme"}]), list[str])
    await emit(asynchronous, "acme", "a", chanel="orders")  # type: ignore[call-overload]
