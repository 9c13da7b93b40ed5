"""Push endpoints through the API."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from tenantry.tenants.spec import TenantSpec
from tests.api.conftest import Api

URL = "https://example.com/hook"
PATH = "/v1/tenants/acme/endpoints"


@pytest.fixture
async def own(api: Api) -> httpx.AsyncClient:
    """Somebody with a key of the tenant's own."""
    await api.administration.put(TenantSpec(id="acme", tier="pooled"), "test")
    return await api.client("endpoints:read", "endpoints:write", tenant="acme")


async def test_an_endpoint_from_its_beginning_to_its_end(own: httpx.AsyncClient) -> None:
    created = await own.post(PATH, json={"name": "orders", "url": URL, "types": ["order.*"], "order": "fifo"})
    assert created.status_code == 201, created.text
    secret, endpoint = created.json()["secret"], created.json()["endpoint"]
    assert secret.startswith("whsec_")
    assert (endpoint["name"], endpoint["types"], endpoint["order"]) == ("orders", ["order.*"], "fifo")
    assert (endpoint["state"], endpoint["retries"], endpoint["max_in_flight"]) == ("active", 12, 10)
    assert (await own.get(PATH)).json() == {"endpoints": [endpoint]}
    assert (await own.get(f"{PATH}/orders")).json() == endpoint
    assert (await own.get(f"{PATH}/orders/secret")).json() == {"secret": secret, "previous_secret_until": None}
    changed = await own.patch(f"{PATH}/orders", json={"timeout_seconds": 30})
    assert (changed.status_code, changed.json()["timeout_seconds"], changed.json()["url"]) == (200, 30, URL)
    rotated = (await own.post(f"{PATH}/orders/rotate")).json()
    assert rotated["secret"] != secret
    assert rotated["previous_secret_until"] == rotated["endpoint"]["previous_secret_until"]
    assert rotated["previous_secret_until"] is not None
    at_once = (await own.post(f"{PATH}/orders/rotate", json={"overlap_seconds": 0})).json()
    assert (at_once["previous_secret_until"], at_once["endpoint"]["secret_version"]) == (None, 3)
    disabled = (await own.post(f"{PATH}/orders/disable", json={"reason": "maintenance"})).json()
    assert (disabled["state"], disabled["state_reason"]) == ("disabled", "maintenance")
    enabled = (await own.post(f"{PATH}/orders/enable")).json()
    assert (enabled["state"], enabled["state_reason"]) == ("active", "")
    assert (await own.delete(f"{PATH}/orders")).status_code == 204
    assert (await own.get(f"{PATH}/orders")).status_code == 404


@pytest.mark.parametrize(
    ("wanted", "field"),
    [
        ({"url": "http://example.com/"}, "url"),
        ({"url": "https://169.254.169.254/latest"}, "url"),
        ({"url": "https://user:pass@example.com/"}, "url"),
        ({"types": ["a..b"]}, "types"),
        ({"retries": 1000}, "retries"),
        ({"channel": "clicks"}, "channel"),
        ({"name": "No!"}, "name"),
    ],
)
async def test_what_is_wrong_is_named(own: httpx.AsyncClient, wanted: dict[str, Any], field: str) -> None:
    refused = await own.post(PATH, json={"name": "orders", "url": URL} | wanted)
    assert (refused.status_code, refused.json()["field"]) == (422, field), refused.text


async def test_a_name_is_given_once_and_the_channel_stays(own: httpx.AsyncClient) -> None:
    assert (await own.post(PATH, json={"name": "orders", "url": URL})).status_code == 201
    assert (await own.post(PATH, json={"name": "orders", "url": URL})).status_code == 409
    assert (await own.patch(f"{PATH}/orders", json={"channel": "properties"})).status_code == 422


async def test_who_may_only_look_sees_no_secret(api: Api, own: httpx.AsyncClient) -> None:
    await own.post(PATH, json={"name": "orders", "url": URL})
    reader = await api.client("endpoints:read", tenant="acme")
    seen = await reader.get(f"{PATH}/orders")
    assert seen.status_code == 200
    assert "whsec_" not in seen.text
    assert (await reader.get(f"{PATH}/orders/secret")).status_code == 403
    assert (await reader.post(f"{PATH}/orders/rotate")).status_code == 403


async def test_the_audit_log_names_who_did_it(api: Api, own: httpx.AsyncClient) -> None:
    await own.post(PATH, json={"name": "orders", "url": URL})
    await own.get(f"{PATH}/orders/secret")
    newest = await api.administration.audit.newest(2)
    assert [each.act for each in newest] == ["endpoint.reveal", "endpoint.create"]
    assert all(each.actor.startswith("key:") and each.tenant_id == "acme" for each in newest)
