"""The SQL functions themselves, as any language calls them."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from tenantry.errors import DatabaseError
from tenantry.outbox import emit
from tenantry.testing import TestPlatform
from tests.outbox.own_database import OwnDatabase, make_own_database


@pytest.fixture
async def outbox(database: str) -> OwnDatabase:
    return await make_own_database(database)


@pytest.fixture
def superuser(outbox: OwnDatabase, platform: TestPlatform) -> Iterator[psycopg.Connection[Any]]:
    name = str(conninfo_to_dict(outbox.url)["dbname"])
    with psycopg.connect(platform.postgres.address("postgres", name), autocommit=True) as connection:
        yield connection


@pytest.fixture
def role(outbox: OwnDatabase, superuser: psycopg.Connection[Any]) -> Iterator[str]:
    """A role that may connect and nothing else."""
    name = f"app_{uuid.uuid4().hex}"
    superuser.execute(sql.SQL("create role {} login password 'secret'").format(sql.Identifier(name)))
    yield name
    superuser.execute(sql.SQL("drop owned by {}").format(sql.Identifier(name)))
    superuser.execute(sql.SQL("drop role {}").format(sql.Identifier(name)))


def test_a_role_needs_the_use_of_the_schema_and_nothing_else(
    outbox: OwnDatabase, superuser: psycopg.Connection[Any], role: str
) -> None:
    url = make_conninfo(outbox.url, user=role, password="secret")
    with pytest.raises(DatabaseError, match="needs `grant usage on schema tenantry`"), psycopg.connect(url) as app:
        emit(app, "acme", "a")
    superuser.execute(sql.SQL("grant usage on schema tenantry to {}").format(sql.Identifier(role)))
    with psycopg.connect(url) as app:
        emit(app, "acme", "a", {"n": 1})
        app.execute('select tenantry.emit_many(\'[{"tenant": "globex", "type": "b"}]\')')
    assert [row["type"] for row in outbox.rows()] == ["a", "b"]
    forbidden = [
        "select * from tenantry.outbox",
        "insert into tenantry.outbox_lanes (tenant_id, channel, payload) values ('mallory', 'events', 1)",
        "select tenantry.outbox_ticket(736800001)",
        "select tenantry.outbox_append('{736800001}', '{x}', '{t}', '{\"{}\"}', '{x}', '{null}')",
        "select setval('tenantry.outbox_tickets', 1)",
    ]
    for statement in forbidden:
        with psycopg.connect(url) as app, pytest.raises(psycopg.errors.InsufficientPrivilege):
            app.execute(statement)


def test_what_a_role_puts_in_its_own_schema_is_never_called(
    outbox: OwnDatabase, superuser: psycopg.Connection[Any], role: str
) -> None:
    """Functions with the rights of their owner must not look where others can write."""
    named = sql.Identifier(role)
    superuser.execute(sql.SQL("create schema {0} authorization {0}").format(named))
    superuser.execute(sql.SQL("grant usage on schema tenantry to {}").format(named))
    with psycopg.connect(make_conninfo(outbox.url, user=role, password="secret"), autocommit=True) as app:
        app.execute(sql.SQL("set search_path = {}, pg_catalog").format(named))
        for function in ("to_json(text)", "gen_random_uuid()", "nextval(regclass)", "length(text)"):
            app.execute(
                f"create function {function} returns text language plpgsql as $$ begin raise 'mine was called'; end $$"
            )
        app.execute("create temporary table outbox_lanes (tenant_id text, channel text)")
        app.execute("select tenantry.emit('acme', 'a', subject => 'x')")
        app.execute("""select tenantry.emit_many('[{"tenant": "acme", "type": "a", "subject": "x"}]')""")
    assert len(outbox.rows()) == 2


def test_the_default_schema_does_not_matter(outbox: OwnDatabase) -> None:
    for path in ("", "pg_temp", "nowhere"):
        with psycopg.connect(outbox.url) as connection:
            connection.execute("select set_config('search_path', %s, false)", [path])
            emit(connection, "acme", "a")
    assert len(outbox.rows()) == 3


def test_the_zone_of_the_session_does_not_matter(outbox: OwnDatabase) -> None:
    with psycopg.connect(outbox.url) as connection:
        connection.execute("set time zone 'Asia/Tokyo'")
        connection.execute("set datestyle = 'German'")
        connection.execute("""select tenantry.emit('acme', 'a', "time" => '2026-01-31 09:00')""")
        connection.execute(
            """select tenantry.emit_many('[{"tenant": "acme", "type": "a", "time": "2026-01-31T01:00:00+01:00"}]')"""
        )
    assert [json.loads(row["document"])["time"] for row in outbox.rows()] == ["2026-01-31T00:00:00.000000Z"] * 2


@pytest.mark.parametrize("time", ["infinity", "-infinity", "0044-03-15 BC", "12026-01-01"])
def test_a_time_that_no_event_can_have_is_refused(outbox: OwnDatabase, time: str) -> None:
    with psycopg.connect(outbox.url) as connection, pytest.raises(psycopg.Error, match="expected time to be") as caught:
        connection.execute("select tenantry.emit('acme', 'a', \"time\" => %s)", [time])
    assert caught.value.sqlstate == "TY422"


@pytest.mark.parametrize("time", ["now", "2026-01-31", "2026-01-31T08:00:00", "2026-02-30T08:00:00Z", "8"])
def test_a_time_in_json_is_written_in_full(outbox: OwnDatabase, time: str) -> None:
    events = json.dumps([{"tenant": "acme", "type": "a", "time": time}])
    with psycopg.connect(outbox.url) as connection, pytest.raises(psycopg.Error, match="expected time to be") as caught:
        connection.execute("select tenantry.emit_many(%s)", [events])
    assert caught.value.sqlstate == "TY422"


@pytest.mark.parametrize(
    ("events", "words"),
    [
        ("{}", "expected events to be a JSON array of objects, got: object"),
        ("null", "expected events to be a JSON array of objects, got: null"),
        ("[3]", "expected an event to be a JSON object, got: number"),
        ('[["tenant"]]', "expected an event to be a JSON object, got: array"),
        ('[{"type": "a"}]', "expected an event to name its tenant"),
        ('[{"tenant": "acme"}]', "expected type to be .* got: null"),
        ('[{"tenant": "acme", "type": "a", "dta": 1}]', "expected an event to have fields of .* got: 'dta'"),
        ('[{"tenant": "acme", "type": "a", "extensions": []}]', "expected extensions to be a JSON object, got: array"),
    ],
)
def test_events_that_are_none_are_refused(outbox: OwnDatabase, events: str, words: str) -> None:
    with psycopg.connect(outbox.url) as connection, pytest.raises(psycopg.Error, match=words) as caught:
        connection.execute("select tenantry.emit_many(%s)", [events])
    assert caught.value.sqlstate == "TY422"


def test_null_is_as_good_as_left_out_but_for_data(outbox: OwnDatabase) -> None:
    nulls = dict.fromkeys(("channel", "id", "source", "subject", "time", "dataschema", "traceparent", "tracestate"))
    events = [
        {"tenant": "acme", "type": "a", "extensions": None, **nulls},
        {"tenant": "acme", "type": "a", "data": None},
    ]
    with psycopg.connect(outbox.url) as connection:
        connection.execute("select tenantry.emit_many(%s)", [json.dumps(events)])
        connection.execute("select tenantry.emit('acme', 'a', null, null, extensions => 'null')")
    documents = [json.loads(row["document"]) for row in outbox.rows()]
    assert [document.get("data", "none") for document in documents] == ["none", None, "none"]
    assert all(document["source"] == f"/{conninfo_to_dict(outbox.url)['dbname']}" for document in documents)
    assert not any({"subject", "dataschema", "tracestate"} & document.keys() for document in documents)


def test_a_prepared_transaction_is_emitted_when_it_is_committed(
    outbox: OwnDatabase, superuser: psycopg.Connection[Any]
) -> None:
    row = superuser.execute("show max_prepared_transactions").fetchone()
    if row == ("0",):
        pytest.skip("max_prepared_transactions is 0")
    name = uuid.uuid4().hex
    with psycopg.connect(outbox.url) as connection:
        connection.tpc_begin(connection.xid(0, name, ""))
        emit(connection, "acme", "a")
        connection.tpc_prepare()
        held = superuser.execute("select lane, pid from tenantry.outbox_horizon() offset 1").fetchall()
        assert [pid for _, pid in held] == [None]
        assert outbox.rows() == []
        connection.tpc_commit()
    assert len(outbox.rows()) == 1
