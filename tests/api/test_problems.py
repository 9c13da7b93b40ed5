"""Every error is a problem document, is the caller's or ours as it should be, and tells no more than it may."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import pytest
from psycopg_pool import AsyncConnectionPool

from tenantry.api.app import build_app
from tenantry.api.edge import LARGEST_BODY
from tenantry.api.server import ApiServer
from tenantry.config import Settings
from tenantry.tenants.api_keys import ApiKeys
from tests.api.conftest import Api

Seen = list[tuple[str, dict[str, object]]]

JSON = {"Content-Type": "application/json"}


def require_problem(answer: httpx.Response, status: int) -> dict[str, Any]:
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.headers["cache-control"] == "no-store"
    document: dict[str, Any] = answer.json()
    assert document["status"] == status
    assert all(document[member] for member in ("type", "title", "detail", "instance"))
    return document


async def test_what_is_not_valid_names_its_field(admin: httpx.AsyncClient) -> None:
    problem = require_problem(await admin.put("/v1/tenants/acme", json={"plan": "nothing"}), 422)
    assert problem["field"] == "plan"
    assert problem["instance"] == "/v1/tenants/acme"
    assert problem["type"] == "urn:tenantry:problem:invalid"


async def test_what_does_not_fit_the_schema_lists_each_value(admin: httpx.AsyncClient) -> None:
    problem = require_problem(await admin.put("/v1/tenants/acme", json={"tier": "none", "colour": "red"}), 422)
    assert {each["field"] for each in problem["errors"]} == {"body.tier", "body.colour"}
    assert "red" not in problem["detail"]


async def test_every_error_is_a_problem(admin: httpx.AsyncClient) -> None:
    for method, path, status in (
        ("GET", "/", 404),
        ("GET", "/v1/nothing", 404),
        ("GET", "/v1/tenants/", 404),
        ("GET", "/docs", 404),
        ("GET", "/v1/tenants/acme", 404),
        ("GET", "/v1/tenants/acme/channels/events", 404),
        ("GET", "/v1/plans/none", 404),
        ("DELETE", "/v1/plans/none", 404),
        ("DELETE", "/v1/keys/000000000000", 404),
        ("DELETE", "/v1/tenants", 405),
        ("POST", "/healthz", 405),
        ("GET", "/v1/tenants?limit=0", 422),
        ("GET", "/v1/tenants?limit=x", 422),
        ("GET", "/v1/audit?tennant=acme", 422),
        ("POST", "/v1/tenants/acme/suspend?dry_run=true", 422),
        ("GET", "/v1/audit?before=9999999999999999999999", 422),
        ("DELETE", "/v1/tenants/acme/credentials/not-a-uuid", 422),
    ):
        require_problem(await admin.request(method, path), status)


async def test_a_method_that_is_not_possible_says_which_are(admin: httpx.AsyncClient) -> None:
    assert "GET" in (await admin.delete("/healthz")).headers["allow"]


ODD_NAMES = ("%00", "a%00b", "%ff", "%ed%a0%80", "%F0%9F%92%A9", "%E2%80%AE", "%2e%2e", "a%2fb", "%0a", "acme%0a")
ODDER_NAMES = ("%20", "A", "a" * 5000, "'--", "%25s", "*", ">", "-", "acme.")
PLACES_FOR_NAMES = (
    ("GET", "/v1/tenants/{}"),
    ("PUT", "/v1/tenants/{}"),
    ("DELETE", "/v1/tenants/{}"),
    ("GET", "/v1/tenants/{}/credentials"),
    ("POST", "/v1/tenants/{}/suspend"),
    ("PUT", "/v1/tenants/acme/channels/{}"),
    ("GET", "/v1/plans/{}"),
    ("PUT", "/v1/plans/{}"),
    ("DELETE", "/v1/keys/{}"),
    ("GET", "/v1/tenants?after={}"),
    ("GET", "/v1/tenants?plan={}"),
    ("GET", "/v1/audit?tenant={}"),
)


async def test_odd_names_are_the_callers_fault(admin: httpx.AsyncClient) -> None:
    for name in ODD_NAMES + ODDER_NAMES:
        for method, path in PLACES_FOR_NAMES:
            url = admin.base_url.copy_with(raw_path=path.format(name).encode())
            answer = await admin.request(method, url, json={})
            assert answer.is_client_error, (method, path, name, answer.text)
            require_problem(answer, answer.status_code)


ODD_CHANGES: tuple[object, ...] = (
    {"name": "\0"},
    {"name": "\ud800"},
    {"name": ""},
    {"name": "x" * 201},
    {"plan": "\0"},
    {"plan": "\ud800"},
    {"channels": {"\0": None}},
    {"channels": {"\ud800": None}},
    {"channels": {"events": "\0"}},
    {"channels": {"events": 10**30}},
    {"channels": {"events": True}},
    {"channels": {"events": "999999999999999w"}},
    {"overrides": {"\ud800": 1}},
    {"overrides": {"retention": {"\0": "1d"}}},
    {"overrides": {"retention": {"\ud800": "1d"}}},
    {"overrides": {"publish_rate": 10**30}},
    {"overrides": {"storage": [[]]}},
    {"placement": {"lake": "\0"}},
    {"placement": {"lake": "\ud800"}},
    {"placement": {"tags": [1]}},
    {"placement": []},
    [],
    None,
    7,
)


async def test_odd_values_in_a_body_are_the_callers_fault(admin: httpx.AsyncClient) -> None:
    for change in ODD_CHANGES:
        answer = await admin.put("/v1/tenants/acme", content=json.dumps(change), headers=JSON)
        require_problem(answer, 422)
    assert (await admin.get("/v1/tenants/acme")).status_code == 404


async def test_bodies_that_are_no_json_are_the_callers_fault(admin: httpx.AsyncClient) -> None:
    for content, status in (
        (b"{", 422),
        (b"", 422),
        (b"\xff", 400),
        (b"[" * 100_000, 400),
        (b"1" * 10_000, 400),
        (b'{"name": NaN}', 422),
        (b'{"name": "a", "name": "\\u0000"}', 422),
    ):
        require_problem(await admin.put("/v1/tenants/acme", content=content, headers=JSON), status)


async def test_a_body_of_another_type_is_not_read_as_json(admin: httpx.AsyncClient) -> None:
    """What a web page of others can make a browser send."""
    answer = await admin.put("/v1/tenants/acme", content=b"{}", headers={"Content-Type": "text/plain"})
    require_problem(answer, 422)


@pytest.mark.parametrize("chunked", [False, True], ids=["with its length", "in chunks"])
async def test_a_body_that_is_too_large_is_refused(admin: httpx.AsyncClient, chunked: bool) -> None:
    async def chunks() -> Any:
        for _ in range(64):
            yield b" " * (LARGEST_BODY // 32)

    content = chunks() if chunked else b" " * (LARGEST_BODY + 1)
    answer = await admin.put("/v1/tenants/acme", content=content, headers=JSON)
    require_problem(answer, 413)
    name = "x" * (LARGEST_BODY - 100)
    require_problem(await admin.put("/v1/tenants/acme", json={"name": name}), 422)


async def test_a_client_that_goes_away_harms_nobody(api: Api, admin: httpx.AsyncClient, signals: Seen) -> None:
    _, writer = await asyncio.open_connection("127.0.0.1", api.server.port)
    head = f"PUT /v1/tenants/acme HTTP/1.1\r\nHost: x\r\nAuthorization: {admin.headers['Authorization']}\r\n"
    # All that it would take, but not all that was announced.
    writer.write(f"{head}Content-Type: application/json\r\nContent-Length: 100\r\n\r\n{{}}".encode())
    await writer.drain()
    writer.close()
    await writer.wait_closed()
    while api.server._server.server_state.tasks:
        await asyncio.sleep(0)
    assert (await admin.get("/v1/tenants/acme")).status_code == 404
    assert not [name for name, _ in signals if name == "api.failed"]


async def test_a_fault_says_nothing_about_its_reason(api: Api, admin: httpx.AsyncClient, signals: Seen) -> None:
    # Rows that no code of ours writes: what reads them does not foresee them.
    async with api.administration.pool.connection() as connection:
        await connection.execute("""insert into tenantry.plans (name, limits) values ('broken', '{"secret": "x"}')""")
    problem = require_problem(await admin.get("/v1/plans"), 500)
    assert problem["type"] == "urn:tenantry:problem:fault"
    assert "secret" not in json.dumps(problem)
    (told,) = [fields for name, fields in signals if name == "api.failed"]
    assert isinstance(told["error"], Exception)
    assert (await admin.get("/v1/tenants")).status_code == 200


async def test_a_database_that_cannot_be_used_is_a_503(api: Api) -> None:
    closed: AsyncConnectionPool[Any] = AsyncConnectionPool("postgresql://secret-host/none", open=False)
    keys = ApiKeys(closed, api.administration.audit)
    server = ApiServer(build_app(api.administration, keys=keys, tokens=None, settings=Settings()), "127.0.0.1", 0)
    await server.start()
    try:
        _, text = await api.keys.create("test", name="test", scopes=["*"])
        async with httpx.AsyncClient(base_url=server.url) as client:
            answer = await client.get("/v1/tenants", headers={"Authorization": f"Bearer {text}"})
    finally:
        await server.stop()
    require_problem(answer, 503)
    assert answer.headers["Retry-After"]
    assert "secret-host" not in answer.text


async def test_nats_that_cannot_be_used_is_no_fault_and_tells_no_address(api: Api, admin: httpx.AsyncClient) -> None:
    await api.administration.backbone.platform._client.close()
    assert (await admin.put("/v1/tenants/acme", json={})).status_code == 202


async def test_a_server_that_stops_finishes_what_it_has_begun(api: Api) -> None:
    admin = await api.client("*")
    putting = asyncio.create_task(admin.put("/v1/tenants/acme", json={}))
    while not await api.administration.registry.find("acme"):
        assert not putting.done() or (await putting).status_code == 201
    await api.server.stop()
    assert (await putting).status_code == 201
    with pytest.raises(httpx.ConnectError):
        await (await api.anybody()).get("/healthz")
