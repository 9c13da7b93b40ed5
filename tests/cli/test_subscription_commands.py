"""`tenantry subscription`, `pause`, `resume`, `lag` and `replay --service`, against a platform that runs."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.cli.conftest import Platform
from tests.subscriptions.letters import Letters

pytestmark = pytest.mark.xdist_group("event commands")


@pytest.fixture
def letters(running: Platform) -> Iterator[Letters]:
    letters = Letters(running.database_url)
    letters.serve("invoices")
    letters.serve("mails", channel="orders", parts=2)
    yield letters
    for table in ("subscription_jobs", "subscription_pauses", "subscriptions"):
        letters.execute(f"delete from tenantry.{table}")


def test_a_service_is_paused_for_a_tenant_and_resumed(running: Platform, letters: Letters) -> None:
    flags = ("--service", "invoices", "--tenant", "acme")
    assert "invoices is paused for acme" in running.run("pause", *flags)
    assert running.json("pause", *flags)["changed"] is False
    listed = {each["service"]: each for each in running.json("subscription", "list")}
    assert [each["tenant_id"] for each in listed["invoices"]["pauses"]] == ["acme"]
    assert listed["mails"]["parts"] == 2
    assert "acme" in running.run("subscription", "show", "invoices")
    assert running.json("subscription", "show", "invoices") == listed["invoices"]
    assert "invoices goes on for acme" in running.run("resume", *flags)
    assert "was not paused" in running.run("resume", *flags)
    assert "mails" in running.run("subscription", "list")
    assert "tenantry subscription list" in running.run("pause", "--service", "x", "--tenant", "acme", status=1)
    assert "tenantry subscription list" in running.run("subscription", "show", "x", status=1)


def test_lag_is_told_of_each_consumer(running: Platform, letters: Letters) -> None:
    rows = running.json("lag", "--tenant", "own", "--service", "mails")
    assert [(row["service"], row["tenant_id"], row["part"], row["pending"]) for row in rows] == [
        ("mails", "own", 0, None),
        ("mails", "own", 1, None),
    ]
    assert {row["tenant_id"] for row in running.json("lag")} >= {"acme", "pooled", "own"}
    assert "no worker has had it yet" in running.run("lag", "--tenant", "acme")
    assert "nobody" in running.run("lag", "--tenant", "nobody", status=1)


def test_a_service_is_given_events_again_or_moved_back(running: Platform, letters: Letters) -> None:
    about = ("--tenant", "acme", "--service", "invoices", "--detach")
    job = running.json("replay", *about, "--from", "2026-11-01", "--to", "2026-11-02T12:00:00+01:00")
    assert (job["kind"], job["service"], job["tenant_id"]) == ("replay", "invoices", "acme")
    assert job["request"] == {
        "from": "2026-11-01T00:00:00.000000+00:00",
        "from_sequence": None,
        "to": "2026-11-02T11:00:00.000000+00:00",
    }
    assert "is under way" in running.run("replay", *about, "--from-sequence", "1", status=1)
    assert running.json("subscription", "cancel", job["id"])["state"] == "cancelling"
    letters.execute("update tenantry.subscription_jobs set state = 'cancelled'")
    assert running.json("replay", *about, "--from-sequence", "7", "--rewind")["kind"] == "rewind"
    for wrong, reason in (
        (("--from-sequence", "1", "--pipeline", "warehouse"), "expected one of --service and --pipeline"),
        ((), "expected one of --from and --from-sequence"),
        (("--from", "soon"), "expected --from to be a date or a time"),
        (("--from-sequence", "1", "--channel", "events"), "a service has one channel"),
    ):
        assert reason in running.run("replay", *about, *wrong, status=1)
    table = ("--tenant", "acme", "--pipeline", "warehouse", "--from-sequence", "1", "--rewind")
    assert "expected --rewind with --service" in running.run("replay", *table, status=1)


def test_a_service_is_forgotten_if_somebody_says_so(running: Platform, letters: Letters) -> None:
    assert "say --yes to go on" in running.run("subscription", "delete", "mails", status=1)
    assert running.json("subscription", "delete", "mails", "--yes")["consumers"] == 0
    assert [each["service"] for each in running.json("subscription", "list")] == ["invoices"]
