"""Tokens: those that hold are taken for what they say, and every hostile one fails closed."""

from __future__ import annotations

import base64
import hmac
import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from tenantry.api.tokens import PublishedKeys, Tokens
from tenantry.config import Settings
from tenantry.errors import ConfigError, NotAuthenticated
from tests.api.conftest import Api, StartApi
from tests.api.issuer import OTHER, PRIVATE, RSA, SECRET, Jwks, claims, ec_token, jwk


@pytest.fixture
def jwks() -> Iterator[tuple[Jwks, str]]:
    published = Jwks(one=PRIVATE, rsa=RSA)
    with published.serve() as url:
        yield published, url


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
    return f"{part({'alg': algorithm, 'typ': 'JWT', 'kid': 'one'})}.{part(claims(exp=4_000_000_000))}."


def _hmac_with(secret: bytes, kid: str) -> str:
    """HS256 with what everybody knows, a public key, as the secret."""
    signed = f"{part({'alg': 'HS256', 'kid': kid})}.{part(claims(exp=4_000_000_000))}"
    return f"{signed}.{to_base64(hmac.digest(secret, signed.encode(), 'sha256'))}"


def _altered(token: str) -> str:
    header, payload, signature = token.split(".")
    document = json.loads(base64.urlsafe_b64decode(payload + "=="))
    return f"{header}.{part(document | {'scope': '*'})}.{signature}"


def part(document: dict[str, Any]) -> str:
    return to_base64(json.dumps(document).encode())


def to_base64(data: bytes) -> str:
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
    "HS256 with the JWK": _hmac_with(json.dumps(jwk("one", PRIVATE)).encode(), "one"),
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
    "a key of its own": jwt.encode(claims(**GOOD), OTHER, "ES256", {"kid": "two", "jwk": jwk("two", OTHER)}),
    "a published secret": jwt.encode(claims(**GOOD), b"0" * 32, "HS256", {"kid": "oct"}),
    "critical extension": jwt.encode(claims(**GOOD), PRIVATE, "ES256", {"kid": "one", "crit": ["x"], "x": 1}),
    "two parts": "a.b",
    "five parts": "a.b.c.d.e",
    "not base64": "!.!.!",
    "kid is no text": f"{part({'alg': 'ES256', 'kid': 7})}.{part(claims(exp=1))}.AAAA",
    "header is no object": f"{to_base64(b'[]')}.{to_base64(b'{}')}.AAAA",
}


@pytest.mark.parametrize("token", HOSTILE.values(), ids=HOSTILE.keys())
async def test_hostile_tokens_are_refused(jwks: tuple[Jwks, str], token: str) -> None:
    published, url = jwks
    published.extra = [{"kty": "oct", "kid": "oct", "k": to_base64(b"0" * 32)}]
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
