"""`tenantry emit`, against a platform that runs."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.cli.conftest import Platform
from tests.processes import run_tenantry

# All on one worker, so that there is one platform.
pytestmark = pytest.mark.xdist_group("event commands")


def document(running: Platform, id: str) -> dict[str, object]:
    with psycopg.connect(running.database_url) as connection:
        row = connection.execute("select document from tenantry.outbox where event_id = %s", [id]).fetchone()
    assert row
    found: dict[str, object] = json.loads(row[0])
    return found


def test_an_event_is_emitted_and_its_id_printed(running: Platform) -> None:
    flags = ("--channel", "orders", "--source", "/shop", "--subject", "order 7")
    id = running.run("emit", "acme", "order.created", '{"order": 7}', *flags).strip()
    written = document(running, id)
    assert (written["type"], written["source"], written["subject"]) == ("order.created", "/shop", "order 7")
    assert written["data"] == {"order": 7}
    published = running.until_published("acme", id)
    assert (published["channel"], published["attempts"]) == ("orders", 1)


def test_data_may_be_left_out_or_be_any_json(running: Platform) -> None:
    assert running.json("emit", "acme", "order.created", "--id", "without-data") == {"id": "without-data"}
    assert "data" not in document(running, "without-data")
    for number, data in enumerate(("null", "-1", '"text"', "12345678901234567890.5")):
        running.run("emit", "acme", "order.created", data, "--id", f"data-{number}")
        assert document(running, f"data-{number}")["data"] == json.loads(data)


def test_what_is_wrong_is_said(running: Platform) -> None:
    assert "expected DATA to be JSON, got: '{oops'" in running.run("emit", "acme", "a", "{oops", status=1)
    assert "there is no tenant 'nobody'" in running.run("emit", "nobody", "a", status=1)
    assert "expected type to be words" in running.run("emit", "acme", "a b", status=1)
    assert "expected TENANT and TYPE, like: tenantry emit acme" in running.run("emit", "acme", status=1)
    assert "no DATA or --id" in running.run("emit", "acme", "a", "1", "--file", "-", status=1)
    assert "say its own channel" in running.run("emit", "--channel", "orders", "--file", "-", status=1)
    assert "cannot read --file" in running.run("emit", "--file", "/does/not/exist", status=1)


def test_lines_are_events_of_their_own(running: Platform, tmp_path: Path) -> None:
    file = tmp_path / "events.jsonl"
    events: list[dict[str, Any]] = [
        {"tenant": "acme" if number % 2 else "own", "type": "bulk.made", "id": f"bulk-{number}", "data": number}
        for number in range(6000)
    ]
    events[7] |= {"channel": "orders", "time": "2026-01-31T08:00:00Z", "extensions": {"region": "eu"}}
    file.write_text("\n\n".join(map(json.dumps, events)))
    assert running.run("emit", "--file", file).split() == [event["id"] for event in events]
    assert document(running, "bulk-7")["region"] == "eu"
    running.until_published("acme", "bulk-5999")


def test_lines_may_be_data_alone(running: Platform) -> None:
    ids = running.json("emit", "acme", "line.read", "--subject", "same", "--file", "-", input='{"n": 1}\n[2]\n')["ids"]
    assert [(document(running, id)["subject"], document(running, id)["data"]) for id in ids] == [
        ("same", {"n": 1}),
        ("same", [2]),
    ]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ('{"tenant": "acme", "type": "no"', "line 3: expected an object with tenant, type and data"),
        ('{"tenant": "acme", "type": "no", "dta": 1}', "line 3: expected an object .*unknown field `dta`"),
        ('{"tenant": "nobody", "type": "no"}', "line 3: there is no tenant 'nobody'"),
        ('{"tenant": "acme", "type": "no no"}', "line 3: event is not valid: expected type .* got: 'no no'"),
    ],
    ids=["not json", "unknown field", "no tenant", "bad type"],
)
def test_a_bad_line_is_named_and_nothing_is_emitted(running: Platform, line: str, words: str) -> None:
    good = '{"tenant": "acme", "type": "never.emitted", "id": "never"}'
    said = running.run("emit", "--file", "-", status=1, input=f"{good}\n\n{line}\n{good}\n")
    assert re.search(words, " ".join(said.split())), said
    with psycopg.connect(running.database_url) as connection:
        assert connection.execute("select from tenantry.outbox where event_id = 'never'").fetchone() is None


def test_it_emits_into_an_outbox_in_a_database_of_its_own(database: str, tmp_path: Path) -> None:
    env = {"TENANTRY_OUTBOX_URL": database}
    refused = run_tenantry("emit", "acme", "a", "--data", tmp_path / "data", env=env)
    assert "run `tenantry migrate --outbox-only`" in refused.stderr
    assert run_tenantry("migrate", "--outbox-only", env=env).returncode == 0
    unknown = run_tenantry("emit", "acme", "a", "--data", tmp_path / "data", env=env)
    assert "learns of it from a running relay" in unknown.stderr
    with psycopg.connect(database) as connection:
        connection.execute(
            "insert into tenantry.outbox_lanes (tenant_id, channel, payload) values ('acme', 'events', 999)"
        )
    done = run_tenantry("emit", "acme", "a", "--data", tmp_path / "data", env=env)
    assert done.returncode == 0, done.stderr
    assert not (tmp_path / "data").exists()
