"""Who gets in, and what they then can do. Each hostile case must fail closed."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import httpx
import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, EllipticCurvePrivateKey
from cryptography.hazmat.primitives.asymmetric.ec import generate_private_key as generate_ec_key
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey
from cryptography.hazmat.primitives.asymmetric.rsa import generate_private_key as generate_rsa_key
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from jwt.algorithms import ECAlgorithm, RSAAlgorithm

from tenantry.api.tokens import PublishedKeys, Tokens
from tenantry.config import Settings
from tenantry.errors import ConfigError, NotAllowed, NotAuthenticated, TenantInvalid, TenantNotFound
from tenantry.tenants.principal import SCOPES, TENANT_SCOPES, Principal
from tenantry.tenants.spec import TenantSpec
from tests.api.conftest import Api, StartApi

SECRET = "a shared key that has more than 32 bytes"
PRIVATE = generate_ec_key(SECP256R1())
OTHER = generate_ec_key(SECP256R1())
RSA = generate_rsa_key(65537, 2048)


class Jwks:
    """A JWKS on this machine, as an issuer would publish it."""

    def __init__(self, **keys: EllipticCurvePrivateKey | RSAPrivateKey) -> None:
        self.keys: dict[str, EllipticCurvePrivateKey | RSAPrivateKey] = keys
        self.reads = 0
        self.status = 200
        self.extra: list[dict[str, Any]] = []

    def document(self) -> bytes:
        return json.dumps({"keys": [_jwk(kid, key) for kid, key in self.keys.items()] + self.extra}).encode()

    @contextmanager
    def serve(self) -> Iterator[str]:
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                outer.reads += 1
                self.send_response(outer.status)
                self.end_headers()
                self.wfile.write(outer.document())

            def log_message(self, *_: object) -> None:
                pass

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/jwks.json"
        finally:
            server.shutdown()
            thread.join()
            server.server_close()


def _jwk(kid: str, key: EllipticCurvePrivateKey | RSAPrivateKey) -> dict[str, Any]:
    if isinstance(key, RSAPrivateKey):
        document = RSAAlgorithm.to_jwk(key.public_key(), as_dict=True)
    else:
        document = ECAlgorithm.to_jwk(key.public_key(), as_dict=True)
    return {**document, "kid": kid, "use": "sig"}


def claims(**more: Any) -> dict[str, Any]:
    given = {"sub": "ann", "exp": datetime.now(UTC) + timedelta(hours=1), "scope": "tenants:read"} | more
    return {name: value for name, value in given.items() if value is not None}


def ec_token(key: EllipticCurvePrivateKey = PRIVATE, kid: str = "one", **more: Any) -> str:
    return jwt.encode(claims(**more), key, "ES256", {"kid": kid})


@pytest.fixture
def jwks() -> Iterator[tuple[Jwks, str]]:
    published = Jwks(one=PRIVATE, rsa=RSA)
    with published.serve() as url:
        yield published, url


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
    credential, _ = await api.administration.issue_credential("other1", "test")
    by_token = jwt.encode(claims(tenant="acme", scope="*"), SECRET, "HS256")
    document = (await (await api.anybody()).get("/openapi.json")).json()
    routes = [(method, path) for method, path, _ in _routes(document) if "{id}" in path]
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
    foreign, _ = await api.administration.issue_credential("globex", "test")
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


def _filled(path: str, tenant: str, cid: str = "00000000-0000-0000-0000-000000000000") -> str:
    return path.format(id=tenant, cid=cid, name="events", key="000000000000")


# Tokens


async def test_a_token_lets_its_bearer_do_what_it_says(start_api: StartApi, jwks: tuple[Jwks, str]) -> None:
    api = await start_api(jwt_keys_url=jwks[1], jwt_issuer="https://issuer", jwt_audience="tenantry")
    of_platform: dict[str, Any] = {
        "iss": "https://issuer",
        "aud": ["tenantry", "other"],
        "scope": ["tenants:read", "openid"],
    }
    reader = await api.bearer(ec_token(**of_platform))
    assert (await reader.get("/v1/tenants")).status_code == 200
    assert (await reader.put("/v1/tenants/acme", json={})).status_code == 403
    writer = await api.bearer(ec_token(**of_platform | {"scope": "tenants:write profile"}))
    assert (await writer.put("/v1/tenants/acme", json={})).status_code == 201
    (newest,) = await api.administration.audit.newest(1)
    assert newest.actor == "token:ann"
    rsa = jwt.encode(claims(**of_platform), RSA, "RS256", {"kid": "rsa"})
    assert (await (await api.bearer(rsa)).get("/v1/tenants")).status_code == 200


async def test_a_token_without_scopes_can_do_nothing(jwks: tuple[Jwks, str]) -> None:
    tokens = Tokens(PublishedKeys(jwks[1]))
    for scope in (None, "", [], 7, {"*": True}, "openid", [["*"]]):
        for tenant in (None, "acme"):
            principal = await tokens.authenticate(ec_token(scope=scope, tenant=tenant))
            assert principal.scopes == frozenset()
            assert principal.tenant == tenant


@pytest.mark.parametrize("tenant", ["", 0, 7, False, [], ["acme"], {"id": "acme"}])
async def test_a_tenant_claim_that_names_no_tenant_opens_nothing(jwks: tuple[Jwks, str], tenant: object) -> None:
    with pytest.raises(NotAuthenticated, match="tenant"):
        await Tokens(PublishedKeys(jwks[1])).authenticate(ec_token(tenant=tenant))


async def test_a_tenant_claim_of_null_opens_nothing(jwks: tuple[Jwks, str]) -> None:
    token = jwt.encode(claims() | {"tenant": None}, PRIVATE, "ES256", {"kid": "one"})
    with pytest.raises(NotAuthenticated, match="tenant"):
        await Tokens(PublishedKeys(jwks[1])).authenticate(token)


def _unsigned(algorithm: str) -> str:
    return f"{_part({'alg': algorithm, 'typ': 'JWT', 'kid': 'one'})}.{_part(claims(exp=4_000_000_000))}."


def _hmac_with(secret: bytes, kid: str) -> str:
    """HS256 with what everybody knows, a public key, as the secret."""
    signed = f"{_part({'alg': 'HS256', 'kid': kid})}.{_part(claims(exp=4_000_000_000))}"
    return f"{signed}.{_base64(hmac.digest(secret, signed.encode(), 'sha256'))}"


def _altered(token: str) -> str:
    header, payload, signature = token.split(".")
    document = json.loads(base64.urlsafe_b64decode(payload + "=="))
    return f"{header}.{_part(document | {'scope': '*'})}.{signature}"


def _part(document: dict[str, Any]) -> str:
    return _base64(json.dumps(document).encode())


def _base64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


PUBLIC_PEM = PRIVATE.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
RSA_PEM = RSA.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
GOOD: dict[str, Any] = {"iss": "https://issuer", "aud": "tenantry"}
HOSTILE = {
    "alg none": _unsigned("none"),
    "alg None": _unsigned("None"),
    "no alg": _unsigned(""),
    "HS256 with the public key": _hmac_with(PUBLIC_PEM, "one"),
    "HS256 with the RSA public key": _hmac_with(RSA_PEM, "rsa"),
    "HS256 with the JWK": _hmac_with(json.dumps(_jwk("one", PRIVATE)).encode(), "one"),
    "HS256 with nothing": _hmac_with(b"", "one"),
    "expired": ec_token(**GOOD, exp=datetime.now(UTC) - timedelta(minutes=1)),
    "without an end": ec_token(**GOOD, exp=None),
    "not yet valid": ec_token(**GOOD, nbf=datetime.now(UTC) + timedelta(minutes=5)),
    "without a subject": ec_token(**GOOD, sub=None),
    "odd subject": ec_token(**GOOD, sub="ann\nroot"),
    "wrong issuer": ec_token(**GOOD | {"iss": "https://evil"}),
    "no issuer": ec_token(aud="tenantry"),
    "wrong audience": ec_token(**GOOD | {"aud": "other"}),
    "no audience": ec_token(iss="https://issuer"),
    "altered payload": _altered(ec_token(**GOOD)),
    "another's key": ec_token(OTHER, **GOOD),
    "unknown kid": ec_token(OTHER, "two", **GOOD),
    "kid of another key": jwt.encode(claims(**GOOD), OTHER, "ES256", {"kid": "rsa"}),
    "no kid among several keys": jwt.encode(claims(**GOOD), PRIVATE, "ES256"),
    "a key of its own": jwt.encode(claims(**GOOD), OTHER, "ES256", {"kid": "two", "jwk": _jwk("two", OTHER)}),
    "a published secret": jwt.encode(claims(**GOOD), b"0" * 32, "HS256", {"kid": "oct"}),
    "critical extension": jwt.encode(claims(**GOOD), PRIVATE, "ES256", {"kid": "one", "crit": ["x"], "x": 1}),
    "two parts": "a.b",
    "five parts": "a.b.c.d.e",
    "not base64": "!.!.!",
    "kid is no text": f"{_part({'alg': 'ES256', 'kid': 7})}.{_part(claims(exp=1))}.AAAA",
    "header is no object": f"{_base64(b'[]')}.{_base64(b'{}')}.AAAA",
}


@pytest.mark.parametrize("token", HOSTILE.values(), ids=HOSTILE.keys())
async def test_hostile_tokens_are_refused(jwks: tuple[Jwks, str], token: str) -> None:
    published, url = jwks
    published.extra = [{"kty": "oct", "kid": "oct", "k": _base64(b"0" * 32)}]
    tokens = Tokens(PublishedKeys(url), issuer="https://issuer", audience="tenantry")
    await tokens.authenticate(ec_token(**GOOD))
    with pytest.raises(NotAuthenticated):
        await tokens.authenticate(token)


async def test_a_hostile_token_is_a_401_and_leaves_no_trace_of_itself(
    start_api: StartApi, jwks: tuple[Jwks, str], signals: list[tuple[str, dict[str, object]]]
) -> None:
    api = await start_api(jwt_keys_url=jwks[1])
    refused = await (await api.bearer(HOSTILE["altered payload"])).get("/v1/tenants")
    assert refused.status_code == 401
    assert HOSTILE["altered payload"].split(".")[1] not in refused.text + str(signals)
    (told,) = [fields for name, fields in signals if name == "api.refused"]
    assert told["path"] == "/v1/tenants"


async def test_tokens_with_a_shared_key_are_hs256_and_nothing_else(start_api: StartApi) -> None:
    api = await start_api(jwt_secret=SECRET)
    good = await api.bearer(jwt.encode(claims(), SECRET, "HS256"))
    assert (await good.get("/v1/tenants")).status_code == 200
    for hostile in (
        jwt.encode(claims(), "another key that has at least 32 bytes", "HS256"),
        jwt.encode(claims(), SECRET * 2, "HS512"),
        ec_token(),
        _unsigned("none"),
    ):
        assert (await (await api.bearer(hostile)).get("/v1/tenants")).status_code == 401


async def test_without_tokens_set_up_no_token_is_taken(api: Api) -> None:
    refused = await (await api.bearer(ec_token())).get("/v1/tenants")
    assert (refused.status_code, "not set up" in refused.json()["detail"]) == (401, True)


async def test_a_new_key_is_found_and_made_up_ones_are_not_asked_for_again_and_again(jwks: tuple[Jwks, str]) -> None:
    published, url = jwks
    patient, eager = Tokens(PublishedKeys(url)), Tokens(PublishedKeys(url, pause_seconds=0))
    for tokens in (patient, eager):
        await tokens.authenticate(ec_token())
        await tokens.authenticate(ec_token())
    assert published.reads == 2
    published.keys["two"] = OTHER
    assert (await eager.authenticate(ec_token(OTHER, "two"))).actor == "token:ann"
    assert published.reads == 3
    for number in range(5):
        with pytest.raises(NotAuthenticated):
            await patient.authenticate(ec_token(OTHER, f"made-up-{number}"))
    assert published.reads == 3


async def test_a_key_that_is_no_longer_published_is_no_longer_good(jwks: tuple[Jwks, str]) -> None:
    published, url = jwks
    tokens = Tokens(PublishedKeys(url, fresh_seconds=0, pause_seconds=0))
    await tokens.authenticate(ec_token())
    del published.keys["one"]
    with pytest.raises(NotAuthenticated, match="not known"):
        await tokens.authenticate(ec_token())


@pytest.mark.parametrize("broken", ["down", "500", "empty"])
async def test_unreadable_keys_are_a_503_and_never_let_anybody_in(start_api: StartApi, broken: str) -> None:
    published = Jwks(one=PRIVATE)
    with published.serve() as url:
        if broken == "500":
            published.status = 500
        elif broken == "empty":
            published.keys = {}
        api = await start_api(jwt_keys_url=url if broken != "down" else "http://127.0.0.1:1/jwks.json")
        bearer = await api.bearer(ec_token())
        for _ in range(3):
            refused = await bearer.get("/v1/tenants")
            assert refused.status_code == 503
            assert "Retry-After" in refused.headers
            assert "127.0.0.1" not in refused.text
        assert published.reads <= 1
        assert (await (await api.client("*")).get("/v1/tenants")).status_code == 200


@pytest.mark.parametrize(
    "settings",
    [
        {"jwt_secret": "short"},
        {"jwt_secret": SECRET, "jwt_keys_url": "https://issuer/jwks"},
        {"jwt_keys_url": "file:///etc/passwd"},
    ],
)
def test_settings_that_would_be_unsafe_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        Tokens.from_settings(Settings(**settings))


def test_no_tokens_are_set_up_by_default() -> None:
    assert Tokens.from_settings(Settings()) is None
