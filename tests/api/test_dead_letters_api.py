"""Dead letters, services and their jobs over HTTP. A tenant's key meets its own, and no trace of others'."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import pytest

from tenantry.tenants.spec import TenantSpec
from tests.api.conftest import Api
from tests.subscriptions.letters import Letters

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "dead-letters.md"
NOBODY = "00000000-0000-0000-0000-000000000000"


@pytest.fixture
async def letters(api: Api) -> Letters:
    for tenant in ("acme", "globex"):
        await api.administration.put(TenantSpec(id=tenant, tier="pooled"), "test")
    letters = Letters(str(api.administration.pool.conninfo))
    letters.serve("invoices")
    return letters


@pytest.fixture
async def own(api: Api, letters: Letters) -> httpx.AsyncClient:
    """Somebody with a key of acme."""
    return await api.client("*", tenant="acme")


async def listed(client: httpx.AsyncClient, **parameters: Any) -> list[str]:
    answer = await client.get("/v1/dead-letters", params=parameters)
    assert answer.status_code == 200, answer.text
    return [each["id"] for each in answer.json()["dead_letters"]]


async def test_dead_letters_are_listed_by_filter_in_pages_and_read_whole(
    admin: httpx.AsyncClient, letters: Letters
) -> None:
    ids = [str(letters.bury("acme", type="order.paid", key=str(number))) for number in range(3)]
    other = str(letters.bury("globex", "mails", reason="KeyError", traceback="line 3", died_at="2026-01-01T00:00:00Z"))
    assert await listed(admin) == [*reversed(ids), other]
    for parameters in (
        {"tenant": "globex"},
        {"service": "mails"},
        {"reason": "keyerr"},
        {"event": "event-4"},
        {"type": "order.created"},
        {"until": "2026-01-02T00:00:00Z"},
    ):
        assert await listed(admin, **parameters) == [other], parameters
    assert await listed(admin, key="1", state="dead", since="2026-01-02T00:00:00Z") == [ids[1]]
    page = (await admin.get("/v1/dead-letters", params={"limit": 3})).json()
    last = await admin.get("/v1/dead-letters", params={"limit": 3, "after": page["next"]})
    assert [each["id"] for each in last.json()["dead_letters"]] == [other]
    assert last.json()["next"] is None
    whole = (await admin.get(f"/v1/dead-letters/{other}")).json()
    assert (whole["traceback"], whole["payload"], whole["payload_base64"]) == ("line 3", {"data": {"total": 7}}, None)
    raw = letters.bury("acme", payload=b"\xff")
    assert (await admin.get(f"/v1/dead-letters/{raw}")).json()["payload_base64"] == "/w=="
    for wrong in ({"after": "x"}, {"state": "alive"}, {"since": "soon"}, {"tennant": "acme"}, {"since": "2026-01-01"}):
        assert (await admin.get("/v1/dead-letters", params=wrong)).status_code == 422, wrong


async def test_a_redrive_is_counted_first_and_then_asked_of_workers(admin: httpx.AsyncClient, letters: Letters) -> None:
    parked, held = (letters.bury("acme", key="a", state=state) for state in ("parked", "held"))
    letters.bury("acme", "pipelines")
    counted = await admin.post("/v1/dead-letters/redrive", json={"state": "held", "dry_run": True})
    assert counted.status_code == 200
    assert (counted.json()["count"], counted.json()["added"], counted.json()["jobs"]) == (2, 1, [])
    assert counted.json()["groups"] == [
        {"service": "invoices", "tenant_id": "acme", "reason": "ValueError: no", "count": 2}
    ]
    assert letters.execute("select 1 from tenantry.subscription_jobs") == []
    asked = await admin.post("/v1/dead-letters/redrive", json={"ids": [str(held)], "until": counted.json()["as_of"]})
    assert asked.status_code == 202
    (job,) = asked.json()["jobs"]
    assert (job["kind"], job["service"], job["tenant_id"], job["total"]) == ("redrive", "invoices", "acme", 2)
    assert letters.with_job(job["id"]) == [parked, held]
    nothing = await admin.post("/v1/dead-letters/redrive", json={"service": "invoices"})
    assert (nothing.status_code, nothing.json()["count"], nothing.json()["under_way"]) == (200, 0, 2)
    refused = await admin.post("/v1/dead-letters/redrive", json={"service": "pipelines"})
    assert refused.status_code == 409
    assert "replay --pipeline" in refused.json()["detail"]
    misspelt = await admin.post("/v1/dead-letters/discard", json={"tennant": "acme"})
    assert misspelt.status_code == 422
    cancelled = await admin.post(f"/v1/subscription-jobs/{job['id']}/cancel")
    assert cancelled.json()["state"] == "cancelled"
    assert (await admin.post(f"/v1/subscription-jobs/{job['id']}/cancel")).status_code == 409
    discarded = await admin.post("/v1/dead-letters/discard", json={"service": "pipelines"})
    assert (discarded.status_code, discarded.json()["discarded"]) == (200, 1)


async def test_a_tenants_key_sees_its_own_dead_letters_and_no_trace_of_others(
    own: httpx.AsyncClient, letters: Letters
) -> None:
    mine = letters.bury("acme", reason="same", key="k", event_id="e", traceback="our code")
    foreign = letters.bury("globex", reason="same", key="k", event_id="e")
    namesake = letters.bury("acme", owner_id=None, reason="same", key="k", event_id="e")
    for parameters in ({}, {"tenant": "acme"}, {"reason": "same"}, {"key": "k"}, {"event": "e"}):
        assert await listed(own, **parameters) == [str(mine)]
    assert (await own.get("/v1/dead-letters", params={"tenant": "globex"})).status_code == 404
    absent = await own.get(f"/v1/dead-letters/{NOBODY}")
    for other in (foreign, namesake):
        there = await own.get(f"/v1/dead-letters/{other}")
        assert there.status_code == absent.status_code == 404
        assert there.text.replace(str(other), NOBODY) == absent.text
    whole = (await own.get(f"/v1/dead-letters/{mine}")).json()
    assert whole["payload"] == {"data": {"total": 7}}
    assert whole["traceback"] is None


async def test_a_tenants_key_acts_on_its_own_dead_letters_alone(own: httpx.AsyncClient, letters: Letters) -> None:
    mine = [letters.bury("acme", key="k", state=state) for state in ("parked", "held", "dead")]
    others = [letters.bury("globex", key="k", state=state) for state in ("parked", "held", "dead")]
    for act in ("redrive", "discard"):
        path = f"/v1/dead-letters/{act}"
        assert (await own.post(path, json={"dry_run": True})).json()["count"] == 3
        for ids in ([str(each) for each in others], [str(uuid4())]):
            answer = await own.post(path, json={"ids": ids})
            found = answer.json()
            assert answer.status_code == 200
            assert (found["count"], found["under_way"], found["groups"], found["jobs"]) == (0, 0, [], [])
        for tenant in ("globex", "nobody"):
            assert (await own.post(path, json={"tenant": tenant})).status_code == 404
    asked = await own.post("/v1/dead-letters/redrive", json={})
    (job,) = asked.json()["jobs"]
    assert (job["tenant_id"], job["total"], letters.with_job(job["id"])) == ("acme", 3, mine)
    assert letters.left() == mine + others
    assert len(letters.execute("select 1 from tenantry.dead_letters where job is not null")) == 3


async def test_of_jobs_a_tenants_key_sees_what_is_for_it_alone(
    own: httpx.AsyncClient, admin: httpx.AsyncClient, letters: Letters
) -> None:
    jobs = {}
    for tenant in ("acme", "globex"):
        wanted = {"service": "invoices", "tenant": tenant, "from": "2026-11-01T12:00:00+01:00"}
        asked = await admin.post("/v1/subscription-jobs", json=wanted)
        assert asked.status_code == 202, asked.text
        jobs[tenant] = asked.json()["id"]
    letters.bury("acme", "mails")
    letters.bury("globex", "mails")
    (both,) = (await admin.post("/v1/dead-letters/redrive", json={})).json()["jobs"]
    found = (await own.get("/v1/subscription-jobs")).json()["jobs"]
    assert [each["id"] for each in found] == [jobs["acme"]]
    assert found[0]["request"]["from"] == "2026-11-01T11:00:00.000000+00:00"
    assert len((await admin.get("/v1/subscription-jobs")).json()["jobs"]) == 3
    assert (await own.get(f"/v1/subscription-jobs/{jobs['acme']}")).status_code == 200
    absent = await own.get(f"/v1/subscription-jobs/{NOBODY}")
    for other in (jobs["globex"], both["id"]):
        there = await own.get(f"/v1/subscription-jobs/{other}")
        assert there.status_code == absent.status_code == 404
        assert there.text.replace(other, NOBODY) == absent.text
        assert (await own.post(f"/v1/subscription-jobs/{other}/cancel")).status_code == 403
    rewind = {"service": "invoices", "tenant": "acme", "kind": "rewind", "from_sequence": 1}
    assert (await own.post("/v1/subscription-jobs", json=rewind)).status_code == 403
    assert (await admin.post("/v1/subscription-jobs", json=rewind)).status_code == 409
    for wrong in ({"from_sequence": 0}, {"to": "2026-11-01T12:00:00Z"}, {"service": "No"}, {"from": "2026-11-01"}):
        assert (await admin.post("/v1/subscription-jobs", json=rewind | wrong)).status_code == 422, wrong


async def test_services_are_paused_by_the_platform_and_a_tenant_sees_its_own_pause(
    own: httpx.AsyncClient, admin: httpx.AsyncClient, letters: Letters
) -> None:
    letters.bury("acme")
    letters.bury("globex")
    for tenant in ("acme", "globex", "globex"):
        paused = await admin.post("/v1/subscriptions/invoices/pause", json={"tenant": tenant})
        assert paused.status_code == 200
    assert [each["tenant_id"] for each in paused.json()["pauses"]] == ["acme", "globex"]
    (seen,) = (await own.get("/v1/subscriptions")).json()["subscriptions"]
    assert ([each["tenant_id"] for each in seen["pauses"]], seen["dead_letters"]) == (["acme"], 1)
    assert (await own.get("/v1/subscriptions/invoices")).json() == seen
    lag = (await own.get("/v1/subscriptions/invoices/lag")).json()["lag"]
    assert [(each["tenant_id"], each["pending"], each["is_known"]) for each in lag] == [("acme", None, True)]
    assert len((await admin.get("/v1/subscriptions/invoices/lag")).json()["lag"]) == 2
    for act in ("pause", "resume"):
        assert (await own.post(f"/v1/subscriptions/invoices/{act}", json={"tenant": "acme"})).status_code == 403
        assert (await admin.post(f"/v1/subscriptions/nothing/{act}", json={"tenant": "acme"})).status_code == 404
        assert (await admin.post(f"/v1/subscriptions/invoices/{act}", json={"tenant": "nobody"})).status_code == 404
    resumed = await admin.post("/v1/subscriptions/invoices/resume", json={"tenant": "acme"})
    assert [each["tenant_id"] for each in resumed.json()["pauses"]] == ["globex"]
    assert (await admin.get("/v1/subscriptions/nothing")).status_code == 404


async def test_the_page_of_dead_letters_does_over_http_what_it_says(api: Api, letters: Letters) -> None:
    _, key = await api.keys.create(
        "test", name="own", scopes=["dead-letters:read", "dead-letters:write", "subscriptions:read"], tenant="acme"
    )
    for tenant in ("acme", "globex"):
        letters.bury(tenant, reason="KeyError: 'total'")
    (block,) = [each for each in re.findall(r"```sh\n(.*?)```", PAGE.read_text(), re.DOTALL) if "curl" in each]
    done = await asyncio.to_thread(
        subprocess.run,
        ["bash", "-c", f"set -eo pipefail\n{block}"],
        capture_output=True,
        text=True,
        env=dict(os.environ, API=api.server.url, KEY=key),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert '"kind":"redrive","service":"invoices","tenant_id":"acme"' in done.stdout
    assert "globex" not in done.stdout
