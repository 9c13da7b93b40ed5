"""Who gets in, and what they then can do. Each hostile case must fail closed."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any

import httpx
import jwt
import pytest

from tenantry.errors import NotAllowed, NotAuthenticated, TenantInvalid, TenantNotFound
from tenantry.tenants.principal import SCOPES, TENANT_SCOPES, Principal
from tenantry.tenants.spec import TenantSpec
from tests.api.conftest import Api, StartApi
from tests.api.issuer import SECRET, claims

# API keys


async def test_a_key_lets_its_bearer_in_until_it_is_revoked(api: Api, admin: httpx.AsyncClient) -> None:
    created = await admin.post("/v1/keys", json={"name": "reader", "scopes": ["tenants:read"], "lifetime": "1d"})
    assert created.status_code == 201
    key, text = created.json()["key"], created.json()["text"]
    assert text.startswith(f"tk_{key['id']}_")
    reader = await api.bearer(text)
    assert (await reader.get("/v1/tenants")).status_code == 200
    assert (await reader.get("/v1/plans")).status_code == 403
    assert (await admin.delete(f"/v1/keys/{key['id']}")).status_code == 204
    refused = await reader.get("/v1/tenants")
    assert refused.status_code == 401
    assert refused.headers["WWW-Authenticate"].startswith("Bearer")
    assert (await admin.delete(f"/v1/keys/{key['id']}")).status_code == 404
    listed = (await admin.get("/v1/keys")).json()["keys"]
    assert [bool(each["revoked_at"]) for each in listed] == [False, True]


async def test_a_stored_key_cannot_be_read_from_the_database(api: Api) -> None:
    _, text = await api.keys.create("test", name="secret", scopes=["*"])
    secret = text.split("_", 2)[2]
    async with api.administration.pool.connection() as connection:
        rows = await (await connection.execute("select to_jsonb(k)::text from tenantry.api_keys k")).fetchall()
        audit = await (await connection.execute("select to_jsonb(a)::text from tenantry.audit a")).fetchall()
    stored = str(rows) + str(audit)
    assert secret not in stored
    assert secret.encode().hex() not in stored
    assert hashlib.sha256(secret.encode()).hexdigest() in stored


async def test_keys_and_their_end_are_in_the_audit_log(api: Api) -> None:
    key, _ = await api.keys.create("ann", name="one", scopes=["plans:read"])
    await api.keys.revoke(key.id, "bob")
    newest = await api.administration.audit.newest()
    assert [(each.act, each.actor) for each in newest] == [("key.revoke", "bob"), ("key.create", "ann")]


async def test_an_expired_key_is_refused(api: Api) -> None:
    key, text = await api.keys.create("test", name="short", scopes=["*"], lifetime=60)
    await api.keys.authenticate(text)
    async with api.administration.pool.connection() as connection:
        await connection.execute("update tenantry.api_keys set expires_at = now() where id = %s", [key.id])
    with pytest.raises(NotAuthenticated):
        await api.keys.authenticate(text)


async def test_keys_of_an_erased_tenant_are_gone_even_if_it_is_created_anew(api: Api) -> None:
    await api.administration.put(TenantSpec(id="acme"), "test")
    own = await api.client("*", tenant="acme")
    assert (await own.get("/v1/tenants/acme")).status_code == 200
    await api.administration.delete("acme", "test")
    await api.administration.put(TenantSpec(id="acme"), "test")
    assert (await own.get("/v1/tenants/acme")).status_code == 401


async def test_made_up_keys_are_refused_alike(api: Api) -> None:
    anybody = await api.anybody()
    unknown = "tk_000000000000_"
    for text in ("tk_", unknown, "tk_ü", unknown + "A" * 43, unknown + "A" * 10_000, "x", "a.b.c"):
        refused = await anybody.get("/v1/tenants", headers=[(b"Authorization", f"Bearer {text}".encode())])
        assert refused.status_code == 401
        assert refused.headers["content-type"] == "application/problem+json"


async def test_another_secret_for_a_known_id_is_refused_like_an_unknown_id(api: Api) -> None:
    key, text = await api.keys.create("test", name="one", scopes=["*"])
    forged, unknown = f"tk_{key.id}_{'A' * 43}", f"tk_000000000000_{text[-43:]}"
    answers = [await (await api.bearer(each)).get("/v1/tenants") for each in (forged, unknown)]
    assert [each.status_code for each in answers] == [401, 401]
    assert answers[0].json() == answers[1].json()


async def test_without_a_bearer_nobody_gets_in(api: Api) -> None:
    anybody = await api.anybody()
    assert (await anybody.get("/v1/tenants")).status_code == 401
    for header in ("Bearer", "Basic YTpi", "tk_1_2"):
        assert (await anybody.get("/v1/tenants", headers={"Authorization": header})).status_code == 401


async def test_nobody_learns_anything_before_they_are_known(api: Api) -> None:
    anybody = await api.anybody()
    broken = await anybody.put("/v1/tenants/acme", content=b"{", headers={"Content-Type": "application/json"})
    odd = await anybody.get("/v1/tenants/%00")
    assert (broken.status_code, odd.status_code) == (401, 401)


async def test_a_key_grants_no_more_than_its_creator_has(api: Api) -> None:
    keeper = await api.client("keys:write", "tenants:read")
    for scopes in (["*"], ["plans:write"], ["tenants:read", "audit:read"]):
        refused = await keeper.post("/v1/keys", json={"name": "more", "scopes": scopes})
        assert refused.status_code == 403
    assert (await keeper.post("/v1/keys", json={"name": "same", "scopes": ["tenants:read"]})).status_code == 201


async def test_keys_that_make_no_sense_are_refused_with_the_reason(admin: httpx.AsyncClient) -> None:
    cases: list[tuple[dict[str, Any], str]] = [
        ({"scopes": ["tenants:fly"]}, "scopes"),
        ({"scopes": []}, "scopes"),
        ({"scopes": ["plans:write"], "tenant": "acme"}, "scopes"),
        ({"scopes": ["*"], "tenant": "nobody"}, "tenant"),
        ({"scopes": ["*"], "lifetime": 0}, "lifetime"),
        ({"scopes": ["*"], "name": "\0"}, "name"),
    ]
    for wanted, field in cases:
        refused = await admin.post("/v1/keys", json={"name": "test"} | wanted)
        assert (refused.status_code, refused.json()["field"]) == (422, field), refused.text


async def test_a_refused_key_is_not_left_behind(api: Api) -> None:
    with pytest.raises(TenantInvalid):
        await api.keys.create("test", name="x", scopes=["*"], tenant="nobody")
    assert await api.keys.list() == []
    with pytest.raises(TenantNotFound):
        await api.keys.revoke("000000000000", "test")


# What a principal may do


def test_a_bound_principal_has_none_of_the_platforms_scopes() -> None:
    bound = Principal(actor="x", tenant="acme", scopes=frozenset(SCOPES))
    assert {scope for scope in SCOPES if bound.has(scope)} == TENANT_SCOPES
    with pytest.raises(NotAllowed, match="plans:write"):
        bound.require("plans:write")
    assert bound.may_see("acme")
    assert not bound.may_see("globex")
    assert Principal(actor="x").may_see("globex")


async def test_each_scope_opens_its_routes_and_no_others(api: Api) -> None:
    """By the scope that the OpenAPI document says each route needs."""
    document = (await (await api.anybody()).get("/openapi.json")).json()
    routes = list(_routes(document))
    assert len(routes) > 20
    for scope in SCOPES:
        client = await api.client(scope)
        for method, path, needed in routes:
            answer = await client.request(method, _filled(path, "nobody"), json={})
            assert (answer.status_code == 403) == (scope not in (needed, "*")), (scope, method, path, answer.text)


async def test_of_another_tenant_there_is_nothing_to_see(start_api: StartApi) -> None:
    """Every route with a tenant in it answers for one that exists as for one that does not, byte for byte."""
    api = await start_api(jwt_secret=SECRET)
    await api.administration.put(TenantSpec(id="acme"), "test")
    await api.administration.put(TenantSpec(id="other1"), "test")
    credential, _ = await api.administration.credentials.issue("other1", "test")
    by_token = jwt.encode(claims(tenant="acme", scope="*"), SECRET, "HS256")
    document = (await (await api.anybody()).get("/openapi.json")).json()
    routes = [(method, path) for method, path, _ in _routes(document) if "{id}" in path]
    in_query = [
        (method, path) for method, path, scope in _routes(document) if _asks_whose(document, method, path, scope)
    ]
    assert len(in_query) > 4
    routes += [(method, f"{path}?tenant={{id}}") for method, path in in_query]
    assert len(routes) > 10
    for client in (await api.client("*", tenant="acme"), await api.bearer(by_token)):
        for method, path in routes:
            for body in ({}, {"to": "stream"}, {"nonsense": True}):
                there = await client.request(method, _filled(path, "other1", str(credential.id)), json=body)
                absent = await client.request(method, _filled(path, "other2", str(credential.id)), json=body)
                assert there.status_code == absent.status_code == 404, (method, path, there.text)
                assert there.text.replace("other1", "other2") == absent.text
                assert dict(there.headers) == dict(absent.headers) | {"date": there.headers["date"]}
        assert [each["id"] for each in (await client.get("/v1/tenants")).json()["tenants"]] == ["acme"]
        assert (await client.get("/v1/tenants", params={"after": "acme"})).json()["tenants"] == []
        assert (await client.get("/v1/tenants", params={"plan": "free"})).json()["tenants"] == []
        for path in ("/v1/audit?tenant=other1", "/v1/audit", "/v1/plans", "/v1/keys"):
            assert (await client.get(path)).status_code == 403
        for id in ("other1", "other2", "acme"):
            assert (await client.post("/v1/tenants", json={"id": id})).status_code == 403
        assert (await client.delete("/v1/tenants/acme")).status_code == 403
        assert (await client.post("/v1/tenants/acme/move", json={"to": "account"})).status_code == 403
        assert (await client.post("/v1/tenants/acme/credentials", json={})).status_code == 201
    assert len(await api.administration.credentials.of("other1")) == 1


async def test_a_credential_of_another_tenant_is_not_reached_through_ones_own(api: Api) -> None:
    await api.administration.put(TenantSpec(id="acme"), "test")
    await api.administration.put(TenantSpec(id="globex"), "test")
    foreign, _ = await api.administration.credentials.issue("globex", "test")
    own = await api.client("*", tenant="acme")
    made_up = "00000000-0000-0000-0000-000000000000"
    for method, rest in (("DELETE", ""), ("POST", "/rotate")):
        there = await own.request(method, f"/v1/tenants/acme/credentials/{foreign.id}{rest}")
        absent = await own.request(method, f"/v1/tenants/acme/credentials/{made_up}{rest}")
        assert there.status_code == absent.status_code
        assert there.is_client_error
        assert there.text.replace(str(foreign.id), made_up) == absent.text
    assert [each.revoked_at for each in await api.administration.credentials.of("globex")] == [None]


def _routes(document: dict[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Method, path and scope of every route that needs one."""
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            if "security" in operation:
                yield method.upper(), path, operation["description"].rpartition("scope `")[2].removesuffix("`.")


def _asks_whose(document: dict[str, Any], method: str, path: str, scope: str) -> bool:
    """Whether a tenant's own key may use the route, and the query names the tenant."""
    parameters = document["paths"][path][method.lower()].get("parameters", [])
    return scope in TENANT_SCOPES and any((each["in"], each["name"]) == ("query", "tenant") for each in parameters)


def _filled(path: str, tenant: str, cid: str = "00000000-0000-0000-0000-000000000000") -> str:
    return path.format(
        id=tenant,
        cid=cid,
        name="events",
        key="000000000000",
        type="order.created",
        projection="totals",
        document_id="1",
        service="invoices",
        letter=cid,
        job=cid,
    )
