"""Tenants through the API: each act does on the servers what it says, and the answer tells how far it is."""

from __future__ import annotations

import httpx
import pytest

from nats_bulk import Credentials
from tenantry.api.server import ApiServer
from tenantry.config import Settings
from tenantry.errors import PortTaken
from tenantry.nats.connections import Broker, connect
from tenantry.tenants.plans import Limits
from tenantry.tenants.spec import TenantSpec
from tests.api.conftest import Api, StartApi

Seen = list[tuple[str, dict[str, object]]]


async def test_a_tenant_is_created_read_changed_and_erased(admin: httpx.AsyncClient) -> None:
    created = await admin.put("/v1/tenants/acme", json={"name": "Acme", "channels": {"events": "7d"}})
    assert created.status_code == 201
    assert created.headers["Location"] == "/v1/tenants/acme"
    assert created.json()["channels"] == {"events": {"retention": 7 * 86_400}}
    assert created.json()["ready"] is True
    assert (await admin.put("/v1/tenants/acme", json={"name": "Acme"})).status_code == 200
    changed = await admin.patch("/v1/tenants/acme", json={"overrides": {"publish_rate": 7}, "plan": "free"})
    assert changed.status_code == 200
    assert changed.json()["limits"]["publish_rate"] == 7
    assert changed.json() == (await admin.get("/v1/tenants/acme")).json()
    erased = await admin.delete("/v1/tenants/acme")
    assert (erased.status_code, erased.content) == (204, b"")
    assert (await admin.get("/v1/tenants/acme")).status_code == 404
    assert (await admin.delete("/v1/tenants/acme")).status_code == 404


async def test_post_creates_a_tenant_by_the_id_in_the_body(admin: httpx.AsyncClient) -> None:
    created = await admin.post("/v1/tenants", json={"id": "acme", "placement": {"lake": "/eu"}})
    assert created.status_code == 201
    assert created.json()["placement"]["lake"] == "/eu"


async def test_patch_does_not_create(admin: httpx.AsyncClient) -> None:
    assert (await admin.patch("/v1/tenants/acme", json={"name": "Acme"})).status_code == 404


async def test_tenants_are_listed_in_pages_and_by_what_they_are(admin: httpx.AsyncClient) -> None:
    for number, plan in enumerate(("free", "pro", "free")):
        await admin.put(f"/v1/tenants/t{number}", json={"plan": plan, "tier": "pooled"})
    first = (await admin.get("/v1/tenants", params={"limit": 2})).json()
    assert [each["id"] for each in first["tenants"]] == ["t0", "t1"]
    second = (await admin.get("/v1/tenants", params={"limit": 2, "after": first["next"]})).json()
    assert [each["id"] for each in second["tenants"]] == ["t2"]
    assert second["next"] is None
    assert len((await admin.get("/v1/tenants", params={"limit": 3})).json()["tenants"]) == 3
    free = (await admin.get("/v1/tenants", params={"plan": "free"})).json()
    assert [each["id"] for each in free["tenants"]] == ["t0", "t2"]
    assert (await admin.get("/v1/tenants", params={"status": "suspended"})).json()["tenants"] == []
    assert (await admin.get("/v1/tenants", params={"tier": "account"})).json()["tenants"] == []
    assert (await admin.get("/v1/tenants", params={"limit": 501})).status_code == 422


async def test_a_suspended_tenant_is_locked_out_and_a_resumed_one_is_not(api: Api, admin: httpx.AsyncClient) -> None:
    await admin.put("/v1/tenants/acme", json={})
    assert (await admin.post("/v1/tenants/acme/suspend")).json()["status"] == "suspended"
    refused = await admin.post("/v1/tenants/acme/credentials", json={})
    assert refused.status_code == 409
    assert (await admin.post("/v1/tenants/acme/resume")).json()["status"] == "active"
    assert (await admin.post("/v1/tenants/acme/credentials", json={})).status_code == 201


async def test_issued_credentials_open_nats_until_they_are_revoked(api: Api, admin: httpx.AsyncClient) -> None:
    await admin.put("/v1/tenants/acme", json={})
    issued = await admin.post("/v1/tenants/acme/credentials", json={"name": "app", "lifetime": "1h"})
    assert issued.status_code == 201
    broker = _broker(api, issued.json()["creds"])
    async with connect(broker, "test") as client:
        assert client.is_connected
    listed = (await admin.get("/v1/tenants/acme/credentials")).json()["credentials"]
    assert [each["name"] for each in listed] == ["app"]
    assert "SEED" not in str(listed)
    rotated = await admin.post(f"/v1/tenants/acme/credentials/{listed[0]['id']}/rotate")
    assert rotated.status_code == 201
    async with connect(_broker(api, rotated.json()["creds"]), "test") as client:
        assert client.is_connected
    old, new = (await admin.get("/v1/tenants/acme/credentials")).json()["credentials"]
    assert old["revoked_at"]
    assert (await admin.delete(f"/v1/tenants/acme/credentials/{new['id']}")).status_code == 204
    assert (await admin.delete(f"/v1/tenants/acme/credentials/{new['id']}")).status_code == 404
    assert (await admin.get("/v1/tenants/nobody/credentials")).status_code == 404


async def test_channels_come_and_go(admin: httpx.AsyncClient) -> None:
    await admin.put("/v1/tenants/acme", json={"channels": {"events": None}})
    created = await admin.put("/v1/tenants/acme/channels/clicks", json={"retention": "24h"})
    assert (created.status_code, created.json()) == (201, {"retention": 86_400})
    changed = await admin.put("/v1/tenants/acme/channels/clicks", json={"retention": 3600})
    assert (changed.status_code, changed.json()) == (200, {"retention": 3600})
    assert (await admin.get("/v1/tenants/acme/channels/clicks")).json() == {"retention": 3600}
    assert (await admin.delete("/v1/tenants/acme/channels/clicks")).status_code == 204
    assert (await admin.get("/v1/tenants/acme/channels/clicks")).status_code == 404
    assert (await admin.delete("/v1/tenants/acme/channels/clicks")).status_code == 404
    last = await admin.delete("/v1/tenants/acme/channels/events")
    assert last.status_code == 409


async def test_a_move_is_planned_begun_and_followed(api: Api, admin: httpx.AsyncClient) -> None:
    await admin.put("/v1/tenants/acme", json={"tier": "pooled", "channels": {"events": None}})
    assert (await admin.get("/v1/tenants/acme/move")).status_code == 404
    planned = await admin.post("/v1/tenants/acme/move", json={"to": "stream", "dry_run": True})
    assert planned.status_code == 200
    assert planned.json()["lanes"][0]["to_stream"] == "TENANT_ACME_EVENTS"
    assert (await admin.get("/v1/tenants/acme/move")).status_code == 404
    begun = await admin.post("/v1/tenants/acme/move", json={"to": "stream"})
    assert (begun.status_code, begun.headers["Location"]) == (202, "/v1/tenants/acme/move")
    # To carry it on is to wait for its end: whoever comes second waits for the first.
    await api.administration.mover.carry_on("acme")
    done = (await admin.get("/v1/tenants/acme/move")).json()
    assert (done["stage"], done["from_tier"], done["to_tier"]) == ("done", "pooled", "stream")
    assert (await admin.get("/v1/tenants/acme")).json()["tier"] == "stream"
    assert (await admin.post("/v1/tenants/acme/move", json={"to": "pooled"})).status_code == 409
    assert (await admin.post("/v1/tenants/nobody/move", json={"to": "stream"})).status_code == 404


async def test_plans_are_created_changed_and_deleted(admin: httpx.AsyncClient) -> None:
    limits = {
        "retention": {"*": "1d"},
        "storage": "1GiB",
        "publish_rate": 10,
        "publish_burst": 10,
        "connections": 5,
        "consumers": 5,
    }
    created = await admin.put("/v1/plans/tiny", json=limits)
    assert (created.status_code, created.json()["limits"]["storage"]) == (201, 1 << 30)
    assert (await admin.put("/v1/plans/tiny", json={"weight": 3})).status_code == 200
    assert (await admin.get("/v1/plans/tiny")).json()["limits"]["weight"] == 3
    assert "tiny" in [each["name"] for each in (await admin.get("/v1/plans")).json()["plans"]]
    await admin.put("/v1/tenants/acme", json={"plan": "tiny"})
    assert (await admin.get("/v1/plans/tiny")).json()["tenants"] == 1
    assert (await admin.delete("/v1/plans/tiny")).status_code == 409
    await admin.patch("/v1/tenants/acme", json={"plan": "free"})
    assert (await admin.delete("/v1/plans/tiny")).status_code == 204
    assert (await admin.get("/v1/plans/tiny")).status_code == 404


async def test_the_audit_log_names_who_did_what_and_verifies(api: Api, admin: httpx.AsyncClient) -> None:
    await admin.put("/v1/tenants/acme", json={})
    await admin.put("/v1/tenants/globex", json={})
    (mine,) = await api.keys.list()
    newest = (await admin.get("/v1/audit", params={"limit": 1})).json()
    assert newest["entries"][0]["tenant_id"] == "globex"
    assert newest["entries"][0]["actor"] == f"key:{mine.id}"
    older = (await admin.get("/v1/audit", params={"before": newest["next"]})).json()["entries"]
    assert [each["act"] for each in older] == ["tenant.create", "key.create"]
    of_acme = (await admin.get("/v1/audit", params={"tenant": "acme"})).json()["entries"]
    assert [each["act"] for each in of_acme] == ["tenant.create"]
    seal = (await admin.post("/v1/audit/verify")).json()
    expected = {"expected": f"{seal['number']}:{seal['seal']}"}
    assert (await admin.post("/v1/audit/verify", json=expected)).status_code == 200
    missing = await admin.post("/v1/audit/verify", json={"expected": f"999:{seal['seal']}"})
    assert (missing.status_code, missing.json()["type"]) == (409, "urn:tenantry:problem:audit-broken")


async def test_what_the_servers_do_not_have_yet_is_answered_with_202(api: Api, admin: httpx.AsyncClient) -> None:
    # A stream of this name that is not Tenantry's stands in the way.
    await api.administration.backbone.platform.create_stream({"name": "TENANT_ACME_EVENTS", "subjects": ["elsewhere"]})
    put = await admin.put("/v1/tenants/acme", json={})
    assert (put.status_code, put.json()["ready"]) == (202, False)
    assert "TENANT_ACME_EVENTS" in put.json()["problem"]
    suspended = await admin.post("/v1/tenants/acme/suspend")
    assert suspended.status_code == 202
    deleted = await admin.delete("/v1/tenants/acme")
    assert (deleted.status_code, deleted.json()["status"]) == (202, "deleting")
    await api.administration.backbone.platform.delete_stream("TENANT_ACME_EVENTS")
    assert (await admin.delete("/v1/tenants/acme")).status_code == 204


async def test_it_is_live_and_ready_for_anybody(api: Api) -> None:
    anybody = await api.anybody()
    assert (await anybody.get("/healthz")).json() == {"status": "ok"}
    ready = await anybody.get("/readyz")
    assert (ready.status_code, ready.json()["checks"]) == (200, {"postgres": True, "nats": True})


async def test_it_is_not_ready_without_nats(api: Api) -> None:
    anybody = await api.anybody()
    await api.administration.backbone.platform._client.close()
    ready = await anybody.get("/readyz")
    assert (ready.status_code, ready.json()["checks"]) == (503, {"postgres": True, "nats": False})
    assert ready.headers["content-type"] == "application/problem+json"
    assert "Retry-After" in ready.headers
    assert (await anybody.get("/healthz")).status_code == 200


async def test_a_taken_port_is_a_clear_error(api: Api, start_api: StartApi) -> None:
    second = ApiServer(api.server._server.config.app, "127.0.0.1", api.server.port)  # type: ignore[arg-type]
    with pytest.raises(PortTaken, match=f"{api.server.port}.*--api-port"):
        await second.start()
    await second.stop()


async def test_requests_are_told_without_secrets(api: Api, admin: httpx.AsyncClient, signals: Seen) -> None:
    await admin.get("/v1/tenants/acme")
    (told,) = [fields for name, fields in signals if name == "api.request"]
    seconds = told.pop("seconds")
    assert isinstance(seconds, float)
    assert told == {"method": "GET", "path": "/v1/tenants/{id}", "status": 404, "caller": "key"}


def test_the_documents_show_every_limit() -> None:
    from tenantry.api.documents import LimitsDocument

    assert tuple(LimitsDocument.model_fields) == Limits.__struct_fields__


def test_a_change_has_every_part_of_a_spec_that_it_can_set() -> None:
    from tenantry.api.tenants import TenantChange

    assert {*TenantChange.model_fields, "id", "without_channels"} == set(TenantSpec.__struct_fields__)


def test_the_api_listens_on_this_machine_alone_unless_told_otherwise() -> None:
    assert Settings().api_host == "127.0.0.1"


def _broker(api: Api, creds: str) -> Broker:
    return Broker(api.administration.lanes.platform.url, Credentials.from_text(creds))
