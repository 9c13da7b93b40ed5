"""JWTs: who signed them, whether they still hold, and what they let their bearer do.

A token is checked with the keys of a JWKS, which are asymmetric, or with one shared key, which is not. A key of one
sort is never used with an algorithm of the other, whatever the token says.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final, Protocol

import jwt
from jwt import PyJWK, PyJWKClient

from tenantry.config import Settings
from tenantry.errors import ConfigError, KeysUnreachable, NotAuthenticated
from tenantry.tenants.principal import SCOPES, Principal
from tenantry.tenants.spec import LONGEST_NAME

ASYMMETRIC: Final = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA")
SYMMETRIC: Final = ("HS256",)
SHORTEST_SECRET: Final = 32
LEEWAY_SECONDS: Final = 5
FETCH_SECONDS: Final = 5.0
FRESH_SECONDS: Final = 300.0
PAUSE_SECONDS: Final = 10.0

_UNREACHABLE: Final = "the keys for tokens cannot be read at the moment; try again, or use an API key"


class Keys(Protocol):
    @property
    def algorithms(self) -> Sequence[str]: ...

    async def find(self, kid: str | None) -> PyJWK | bytes: ...


class SharedKey:
    algorithms = SYMMETRIC

    def __init__(self, secret: str) -> None:
        if len(secret.encode()) < SHORTEST_SECRET:
            raise ConfigError(
                f"expected jwt_secret to have at least {SHORTEST_SECRET} bytes, got {len(secret.encode())}; make one "
                "with `openssl rand -base64 32`"
            )
        self._secret = secret.encode()

    async def find(self, kid: str | None) -> bytes:  # noqa: ARG002
        return self._secret


class PublishedKeys:
    """The keys of a JWKS. They are read again when they are old, or when a token names one that is not among them.

    Anybody can make up names of keys, so there is a pause between two reads.
    """

    algorithms = ASYMMETRIC

    def __init__(self, url: str, *, fresh_seconds: float = FRESH_SECONDS, pause_seconds: float = PAUSE_SECONDS) -> None:
        try:
            self._client = PyJWKClient(url, cache_jwk_set=False, timeout=FETCH_SECONDS)
        except jwt.PyJWTError as problem:
            raise ConfigError(f"expected jwt_keys_url to be the address of a JWKS: {problem}") from None
        self._fresh_seconds = fresh_seconds
        self._pause_seconds = pause_seconds
        self._keys: list[PyJWK] = []
        self._read_at = -float("inf")
        self._tried_at = -float("inf")
        self._reading = asyncio.Lock()

    async def find(self, kid: str | None) -> PyJWK:
        if not self._has_fresh(kid):
            async with self._reading:
                if not self._has_fresh(kid):
                    await self._read_after_pause()
        found = self._match(kid)
        if found is None:
            raise NotAuthenticated("the token is signed with a key that is not known")
        return found

    @property
    def _is_fresh(self) -> bool:
        return time.monotonic() - self._read_at < self._fresh_seconds

    def _has_fresh(self, kid: str | None) -> bool:
        return self._is_fresh and self._match(kid) is not None

    def _match(self, kid: str | None) -> PyJWK | None:
        if kid is None:
            return self._keys[0] if len(self._keys) == 1 else None
        return next((key for key in self._keys if key.key_id == kid), None)

    async def _read_after_pause(self) -> None:
        if time.monotonic() - self._tried_at < self._pause_seconds:
            if not self._is_fresh:
                raise KeysUnreachable(_UNREACHABLE)
            return
        self._tried_at = time.monotonic()
        try:
            async with asyncio.timeout(2 * FETCH_SECONDS):
                keys = await asyncio.to_thread(lambda: self._client.get_jwk_set(refresh=True).keys)
        except (jwt.PyJWTError, OSError, ValueError) as problem:
            raise KeysUnreachable(_UNREACHABLE) from problem
        # A secret that somebody publishes by mistake must not become one that signs.
        self._keys = [key for key in keys if key.algorithm_name in ASYMMETRIC and key.public_key_use in ("sig", None)]
        self._read_at = time.monotonic()


class Tokens:
    def __init__(
        self,
        keys: Keys,
        *,
        issuer: str | None = None,
        audience: str | None = None,
        tenant_claim: str = "tenant",
        scope_claim: str = "scope",
    ) -> None:
        self._keys = keys
        self._issuer = issuer
        self._audience = audience
        self._tenant_claim = tenant_claim
        self._scope_claim = scope_claim

    @classmethod
    def from_settings(cls, settings: Settings) -> Tokens | None:
        """None if tokens are not set up."""
        if settings.jwt_keys_url and settings.jwt_secret:
            raise ConfigError("expected jwt_keys_url or jwt_secret, got both; unset one of them")
        keys: Keys
        if settings.jwt_keys_url:
            keys = PublishedKeys(settings.jwt_keys_url)
        elif settings.jwt_secret:
            keys = SharedKey(settings.jwt_secret.get_secret_value())
        else:
            return None
        return cls(
            keys,
            issuer=settings.jwt_issuer,
            audience=settings.jwt_audience,
            tenant_claim=settings.jwt_tenant_claim,
            scope_claim=settings.jwt_scope_claim,
        )

    async def authenticate(self, text: str) -> Principal:
        try:
            header = jwt.get_unverified_header(text)
            if header.get("alg") not in self._keys.algorithms:
                raise NotAuthenticated(f"expected a token signed with one of {', '.join(self._keys.algorithms)}")
            claims = self._verify(text, await self._keys.find(header.get("kid")))
        except (jwt.PyJWTError, ValueError, TypeError, OverflowError) as problem:
            raise NotAuthenticated(f"the token is not valid: {problem}") from None
        return self._principal(claims)

    def _verify(self, text: str, key: PyJWK | bytes) -> dict[str, Any]:
        claims: dict[str, Any] = jwt.decode(
            text,
            key,
            algorithms=self._keys.algorithms,
            issuer=self._issuer,
            audience=self._audience,
            leeway=LEEWAY_SECONDS,
            options={"require": ["exp", "sub"], "verify_aud": self._audience is not None},
        )
        return claims

    def _principal(self, claims: Mapping[str, Any]) -> Principal:
        subject = claims["sub"]
        if not 0 < len(subject) <= LONGEST_NAME or not subject.isprintable():
            raise NotAuthenticated("the token is not valid: its subject is not a name")
        tenant = None
        # A claim that is there and names no tenant must not open the whole platform.
        if self._tenant_claim in claims:
            tenant = claims[self._tenant_claim]
            if not isinstance(tenant, str) or not tenant:
                raise NotAuthenticated(f"the token is not valid: its claim {self._tenant_claim} does not name a tenant")
        return Principal(actor=f"token:{subject}", tenant=tenant, scopes=_scopes(claims.get(self._scope_claim)))


def _scopes(claim: object) -> frozenset[str]:
    """Those that are ours: an issuer may list others. A token that lists none can do nothing."""
    listed = claim.split() if isinstance(claim, str) else claim if isinstance(claim, list) else []
    return frozenset(scope for scope in listed if isinstance(scope, str) and scope in SCOPES)
