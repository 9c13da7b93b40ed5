"""Documents over HTTP: one tenant's, and whose is never in doubt."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from urllib.parse import quote

import httpx
import pytest

from tenantry.pipelines.task_database import close_idle
from tenantry.tenants.spec import TenantSpec
from tests.api.conftest import Api
from tests.pipelines.place import Place, Sent

ODD = "a/b c?d=é%2F"


@pytest.fixture
async def place(api: Api) -> Place:
    """Five documents of acme and one of globex."""
    for tenant in ("acme", "globex"):
        await api.administration.put(TenantSpec(id=tenant, tier="pooled"), "test")
    place = Place(str(api.administration.pool.conninfo))
    place.open_lanes("acme", "globex")
    events = [Sent(each, f"doc-{each}", each) for each in range(1, 5)]
    await asyncio.to_thread(place.fold, [*events, Sent(5, ODD, 5), Sent(1, "doc-1", "of globex", "globex")])
    close_idle()
    return place


async def test_a_tenants_key_reads_its_documents(api: Api, place: Place) -> None:
    own = await api.client("documents:read", tenant="acme")
    path = f"/v1/documents/{place.name}/doc-2"
    for parameters in ({}, {"tenant": "acme"}):
        answer = await own.get(path, params=parameters)
        assert answer.status_code == 200
        found = answer.json()
        assert found.pop("updated_at")
        assert found == {"id": "doc-2", "projection": place.name, "document": {"seen": [[2, 2]]}, "sequence": 2}
    odd = await own.get(f"/v1/documents/{place.name}/{quote(ODD, safe='')}")
    assert odd.json()["id"] == ODD
    missing = await own.get(f"/v1/documents/{place.name}/doc-9")
    assert missing.status_code == 404
    assert "doc-9" in missing.json()["detail"]


async def test_a_document_that_is_known_already_is_not_sent_again(api: Api, place: Place) -> None:
    own = await api.client("documents:read", tenant="acme")
    path = f"/v1/documents/{place.name}/doc-2"
    tag = (await own.get(path)).headers["ETag"]
    for header in (tag, f"W/{tag}", f'"x", {tag}', "*"):
        unchanged = await own.get(path, headers={"If-None-Match": header})
        assert (unchanged.status_code, unchanged.content, unchanged.headers["ETag"]) == (304, b"", tag)
    assert (await own.get(path, headers={"If-None-Match": '"0-0"'})).status_code == 200
    await asyncio.to_thread(place.fold, [Sent(6, "doc-2", 6)])
    close_idle()
    changed = await own.get(path, headers={"If-None-Match": tag})
    assert (changed.status_code, changed.json()["sequence"]) == (200, 6)
    assert changed.headers["ETag"] != tag


async def test_documents_are_listed_in_pages(api: Api, place: Place) -> None:
    own = await api.client("documents:read", tenant="acme")
    seen, after = [], None
    for _ in range(3):
        parameters = {"limit": "2"} | ({"after": after} if after else {})
        page = (await own.get(f"/v1/documents/{place.name}", params=parameters)).json()
        seen.append([each["id"] for each in page["documents"]])
        after = page["next"]
    assert seen == [[ODD, "doc-1"], ["doc-2", "doc-3"], ["doc-4"]]
    assert after is None
    assert (await own.get("/v1/documents/nothing")).json() == {"documents": [], "next": None}


async def test_whoever_is_for_all_tenants_says_whose(admin: httpx.AsyncClient, place: Place) -> None:
    for path in (f"/v1/documents/{place.name}", f"/v1/documents/{place.name}/doc-1"):
        unsaid = await admin.get(path)
        assert (unsaid.status_code, unsaid.json()["field"]) == (422, "tenant")
        assert (await admin.get(path, params={"tenant": "nobody"})).status_code == 404
    found = await admin.get(f"/v1/documents/{place.name}/doc-1", params={"tenant": "globex"})
    assert found.json()["document"] == {"seen": [[1, "of globex"]]}
    listed = await admin.get(f"/v1/documents/{place.name}", params={"tenant": "globex"})
    assert [each["id"] for each in listed.json()["documents"]] == ["doc-1"]


async def test_anothers_documents_are_answered_like_those_of_a_tenant_that_does_not_exist(
    api: Api, place: Place
) -> None:
    own = await api.client("documents:read", tenant="acme")
    for path in (f"/v1/documents/{place.name}", f"/v1/documents/{place.name}/doc-1"):
        there = await own.get(path, params={"tenant": "globex"})
        absent = await own.get(path, params={"tenant": "nobody"})
        assert there.status_code == absent.status_code == 404
        assert there.text.replace("globex", "nobody") == absent.text


async def test_without_the_scope_nothing_is_read(api: Api, place: Place) -> None:
    for tenant in (None, "acme"):
        other = await api.client("tenants:read", "events:write", tenant=tenant)
        for path in (f"/v1/documents/{place.name}", f"/v1/documents/{place.name}/doc-1"):
            assert (await other.get(path, params={"tenant": "acme"})).status_code == 403


async def test_what_cannot_be_an_id_is_refused(api: Api, place: Place) -> None:
    own = await api.client("documents:read", tenant="acme")
    for rest in ("%00", "x" * 257, ""):
        assert (await own.get(f"/v1/documents/{place.name}/{rest}")).status_code == 422, rest
    assert (await own.get(f"/v1/documents/{place.name}", params={"after": "\0"})).status_code == 422
    assert (await own.get("/v1/documents/NO")).status_code == 422


def test_the_api_does_without_spark() -> None:
    check = "import sys, tenantry.api.app; print('pyspark' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
