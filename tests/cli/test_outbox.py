"""`tenantry outbox status` and `events`, against a platform that runs."""

from __future__ import annotations

import psycopg
import pytest

from tenantry.outbox import emit
from tests.cli.conftest import Platform
from tests.processes import run_tenantry

pytestmark = pytest.mark.xdist_group("event commands")


def test_who_holds_back_a_lane_is_named(running: Platform) -> None:
    url = running.database_url
    with psycopg.connect(url, application_name="slow [import]") as slow, psycopg.connect(url, autocommit=True) as quick:
        emit(slow, "sharing", "order.created", id="slow")
        emit(quick, "sharing", "order.created", id="behind")
        status = running.json("outbox", "status", "--tenant", "sharing")
        (holder,) = status["holders"]
        assert (holder["pid"], holder["application_name"]) == (slow.info.backend_pid, "slow [import]")
        assert (holder["lanes"], holder["holds_every_lane"]) == (["sharing/events"], False)
        assert holder["state"] == "idle in transaction"
        lane = next(lane for lane in status["lanes"] if lane["channel"] == "events")
        assert (lane["pending"], lane["is_more"], status["pending"]) == (1, False, 1)
        assert lane["oldest"] == status["oldest"]
        shown = running.run("outbox", "status")
        for part in ("sharing", "slow [import]", "sharing/events", "idle in transaction", "outbox_other", "relays"):
            assert part in shown
        (pending,) = running.json("outbox", "events", "sharing", "--state", "pending")
        assert (pending["id"], pending["state"], pending["published_at"]) == ("behind", "pending", None)
    running.until_published("sharing", "behind")
    listed = running.json("outbox", "events", "sharing")
    assert [event["id"] for event in listed] == ["behind", "slow"]
    assert {event["state"] for event in listed} == {"published"}
    assert all(event["published_at"] and event["attempts"] == 1 and event["size"] > 100 for event in listed)
    assert running.json("outbox", "events", "sharing", "--limit", "1") == listed[:1]
    assert "published" in running.run("outbox", "events", "sharing")


def test_a_tenant_without_events_has_none_and_an_unknown_one_is_an_error(running: Platform) -> None:
    assert running.json("outbox", "events", "pooled", "--state", "failed") == []
    assert "The outbox has no failed events of tenant pooled." in running.run(
        "outbox", "events", "pooled", "--state", "failed"
    )
    assert "the outbox knows no tenant 'nobody'" in running.run("outbox", "events", "nobody", status=1)
    assert "the outbox knows no tenant 'nobody'" in running.run("outbox", "status", "--tenant", "nobody", status=1)
    refused = run_tenantry("outbox", "events", "acme", "--state", "lost")
    assert refused.returncode != 0
    assert "pending" in refused.stdout + refused.stderr
