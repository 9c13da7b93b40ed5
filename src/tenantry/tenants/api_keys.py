"""API keys: `tk_<id>_<secret>`. The text is handed out once; the database has a hash of its secret.

The hash is a plain SHA-256. A slow one protects secrets that people chose; these are 32 random bytes, which nobody can
guess from a hash, however fast it is.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import msgspec
from psycopg import errors as database_errors
from psycopg.rows import DictRow

from tenantry.errors import NotAuthenticated, TenantInvalid, TenantNotFound
from tenantry.postgres.pool import Pool
from tenantry.postgres.queries import SqlFolder
from tenantry.tenants.audit import AuditLog
from tenantry.tenants.principal import Principal, read_scopes
from tenantry.tenants.spec import require_text

PREFIX: Final = "tk_"
SHORTEST_LIFETIME: Final = 1.0

_ID_BYTES: Final = 6
_SECRET_BYTES: Final = 32
_KEY = re.compile(rf"{PREFIX}([0-9a-f]{{{2 * _ID_BYTES}}})_([A-Za-z0-9_-]{{43}})")

_sql = SqlFolder("tenantry.tenants")


class ApiKey(msgspec.Struct, frozen=True, kw_only=True):
    """A key without its secret."""

    id: str
    name: str
    tenant_id: str | None
    scopes: tuple[str, ...]
    created_at: datetime
    expires_at: datetime | None
    revoked_at: datetime | None

    @property
    def is_valid(self) -> bool:
        return self.revoked_at is None and (self.expires_at is None or self.expires_at > datetime.now(UTC))

    @property
    def principal(self) -> Principal:
        return Principal(actor=f"key:{self.id}", tenant=self.tenant_id, scopes=frozenset(self.scopes))

    def describe(self) -> dict[str, Any]:
        document: dict[str, Any] = msgspec.to_builtins(self)
        return document


class ApiKeys:
    def __init__(self, pool: Pool, audit: AuditLog) -> None:
        self._pool = pool
        self._audit = audit

    async def create(
        self,
        actor: str,
        *,
        name: str,
        scopes: Iterable[str],
        tenant: str | None = None,
        lifetime: float | None = None,
    ) -> tuple[ApiKey, str]:
        """A new key, for `lifetime` seconds or until it is revoked, and its text, which cannot be had again."""
        require_text("name", name)
        if lifetime is not None and lifetime < SHORTEST_LIFETIME:
            raise TenantInvalid("lifetime", f"expected lifetime to be at least a second, got: {lifetime}")
        id, secret = secrets.token_hex(_ID_BYTES), secrets.token_urlsafe(_SECRET_BYTES)
        row = {
            "id": id,
            "name": name,
            "secret_hash": _hash(secret),
            "tenant_id": tenant,
            "scopes": sorted(read_scopes(scopes, tenant)),
            "expires_at": datetime.now(UTC) + timedelta(seconds=lifetime) if lifetime is not None else None,
        }
        async with self._pool.connection() as connection, connection.transaction():
            try:
                inserted = await _sql.fetch_one(connection, "insert_api_key", row)
            except database_errors.ForeignKeyViolation:
                raise TenantInvalid("tenant", f"there is no tenant {tenant!r}") from None
            assert inserted is not None
            key = _key(inserted)
            await self._audit.append(connection, actor, "key.create", tenant, after=key.describe())
        return key, f"{PREFIX}{id}_{secret}"

    async def list(self) -> list[ApiKey]:
        """All keys, the oldest first, with those that are no longer valid."""
        async with self._pool.connection() as connection:
            return [_key(row) for row in await _sql.fetch_all(connection, "api_keys")]

    async def revoke(self, id: str, actor: str) -> ApiKey:
        """Refuse the key from now on."""
        async with self._pool.connection() as connection, connection.transaction():
            row = await _sql.fetch_one(connection, "revoke_api_key", {"id": id})
            if row is None:
                raise TenantNotFound(f"there is no key {id!r} that could be revoked")
            key = _key(row)
            await self._audit.append(connection, actor, "key.revoke", key.tenant_id, after=key.describe())
        return key

    async def authenticate(self, text: str) -> Principal:
        """Whose key this is. Why a key is refused is nobody's business but its owner's, so there is one answer."""
        parts = _KEY.fullmatch(text)
        if parts:
            async with self._pool.connection() as connection:
                row = await _sql.fetch_one(connection, "find_api_key", {"id": parts[1]})
            if row and hmac.compare_digest(_hash(parts[2]), bytes(row["secret_hash"])) and _key(row).is_valid:
                return _key(row).principal
        raise NotAuthenticated("the API key is not known, was revoked or has expired")


def _hash(secret: str) -> bytes:
    return hashlib.sha256(secret.encode()).digest()


def _key(row: DictRow) -> ApiKey:
    fields = {name: row[name] for name in ApiKey.__struct_fields__}
    return ApiKey(**fields | {"scopes": tuple(row["scopes"])})
