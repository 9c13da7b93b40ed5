"""`tenantry table list`, `table maintain` and `usage`, against a platform that runs."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from tenantry.pipelines.table_upkeep import ENOUGH_SMALL
from tests.cli.conftest import Platform
from tests.pipelines.own_lake import OwnLake

pytestmark = pytest.mark.xdist_group("event commands")

IMPORTED = """
import sys
import tenantry.cli.table, tenantry.cli.usage
print("pyspark" in sys.modules)
"""


@pytest.fixture
def ledger(running: Platform, tmp_path: Path) -> Iterator[str]:
    """A table of tenant own, with as many files as are worth putting together; it is not yet its turn."""
    lake = OwnLake(str(tmp_path / "lake"))
    place = lake.place("own", "ledger")
    for number in range(ENOUGH_SMALL):
        lake.append_numbered(place, number * 10)
    with psycopg.connect(running.database_url, autocommit=True) as connection:
        connection.execute(
            "insert into tenantry.lake_tables (location, tenant_id, tenant_uid, name, rows, maintained_at) "
            "select %s, id, uid, 'ledger', 7, now() from tenantry.tenants where id = 'own'",
            [place],
        )
        yield place
        connection.execute("delete from tenantry.lake_tables where location = %s", [place])


def test_tables_are_listed_as_they_are_and_looked_after_when_asked(running: Platform, ledger: str) -> None:
    (listed,) = [each for each in running.json("table", "list", "--tenant", "own") if each["table"] == "ledger"]
    assert (listed["rows"], listed["files"], listed["location"]) == (10 * ENOUGH_SMALL, ENOUGH_SMALL, ledger)
    (noted,) = [each for each in running.json("table", "list", "--recorded") if each["table"] == "ledger"]
    assert noted["rows"] == 7
    shown = running.run("table", "list", "--tenant", "own")
    assert "ledger" in shown
    assert ledger in shown
    assert f"{ENOUGH_SMALL} → 1" in running.run("table", "maintain", "--tenant", "own", "--table", "ledger")
    (done,) = running.json("table", "maintain", "--table", "ledger")
    assert done["figures"]["rows"] == 10 * ENOUGH_SMALL
    assert (done["files_before"], done["figures"]["files"]) == (1, 1)
    (noted,) = [each for each in running.json("table", "list", "--recorded") if each["table"] == "ledger"]
    assert noted["rows"] == 10 * ENOUGH_SMALL
    assert noted["maintained_at"]


def test_a_table_that_cannot_be_opened_is_named_and_its_figures_stay(running: Platform, ledger: str) -> None:
    log = Path(ledger) / "_delta_log"
    for file in log.iterdir():
        file.write_text("not what it was")
    (listed,) = [each for each in running.json("table", "list", "--tenant", "own") if each["table"] == "ledger"]
    assert listed["rows"] == 7
    said = running.run("table", "maintain", "--table", "ledger", status=1)
    assert f"Tenant own: ledger at {ledger} could not be looked after" in said


def test_there_may_be_no_tables_and_no_such_tenant(running: Platform) -> None:
    assert running.json("table", "maintain", "--tenant", "pooled", "--table", "nothing") == []
    assert "There are no such tables." in running.run("table", "maintain", "--table", "nothing")
    for command in ("list", "maintain"):
        assert "nobody" in running.run("table", command, "--tenant", "nobody", status=1)


def test_usage_is_summed_up_by_what_is_asked_for(running: Platform) -> None:
    with psycopg.connect(running.database_url, autocommit=True) as connection:
        for ago, channel, seconds in (
            ("1 minute", "events", 1.5),
            ("3 minutes", "orders", 0.5),
            ("3 days", "events", 9),
        ):
            connection.execute(
                "insert into tenantry.usage select 'own', %s, 'ledgers', date_trunc('minute', now()) - %s::interval, "
                "10, 1000, 300, %s",
                [channel, ago, seconds],
            )
    flags = ("--pipeline", "ledgers")
    figures = {"events": 20, "bytes": 2000, "stored_bytes": 600, "task_seconds": 2.0}
    assert running.json("usage", *flags) == [{"tenant": "own"} | figures]
    assert running.json("usage", "--tenant", "own", *flags, "--by", "pipeline") == [{"pipeline": "ledgers"} | figures]
    assert running.json("usage", "--tenant", "acme", *flags) == []
    by_channel = running.json("usage", *flags, "--by", "channel")
    assert [(each["channel"], each["task_seconds"]) for each in by_channel] == [("events", 1.5), ("orders", 0.5)]
    by_minute = running.json("usage", *flags, "--by", "minute", "--since", "7d")
    assert [each["task_seconds"] for each in by_minute] == [9, 0.5, 1.5]
    assert [each["events"] for each in running.json("usage", *flags, "--since", "30d")] == [30]
    shown = running.run("usage", *flags)
    for part in ("stored bytes", "2,000", "2.000"):
        assert part in shown
    assert "expected since to be a positive duration" in running.run("usage", "--since", "soon", status=1)


def test_neither_needs_spark() -> None:
    done = subprocess.run([sys.executable, "-c", IMPORTED], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
