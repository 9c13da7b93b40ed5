"""Claims: signed statements about operators, accounts and users, as NATS JWTs (version 2).

Field names are those of the server's own library: https://github.com/nats-io/jwt/tree/main/v2
"""

from __future__ import annotations

import base64
import hashlib
import os
import time
from typing import Any, Final

import msgspec

from nats_bulk import Credentials
from tenantry.nats.keys import Key, Role

VERSION: Final = 2
UNLIMITED: Final = -1
ALL_USERS: Final = "*"


class _Omitting(msgspec.Struct, kw_only=True, frozen=True, omit_defaults=True):
    """The server reads a missing field as nought; so nought is what our defaults say and leave out."""


class JetStreamLimits(_Omitting, frozen=True, kw_only=True):
    """What an account may store and create. -1 is unlimited; no storage at all turns JetStream off."""

    mem_storage: int = 0
    disk_storage: int = 0
    streams: int = 0
    consumer: int = 0
    max_ack_pending: int = 0
    mem_max_stream_bytes: int = 0
    disk_max_stream_bytes: int = 0
    max_bytes_required: bool = False


class AccountLimits(JetStreamLimits, frozen=True, kw_only=True):
    """All limits of an account. `tiered_limits` has JetStream limits per replica count (`R1`, `R3`) instead."""

    subs: int = UNLIMITED
    data: int = UNLIMITED
    payload: int = UNLIMITED
    imports: int = UNLIMITED
    exports: int = UNLIMITED
    wildcards: bool = True
    disallow_bearer: bool = False
    conn: int = UNLIMITED
    leaf: int = UNLIMITED
    tiered_limits: dict[str, JetStreamLimits] = {}


UNLIMITED_JETSTREAM: Final = AccountLimits(
    mem_storage=UNLIMITED, disk_storage=UNLIMITED, streams=UNLIMITED, consumer=UNLIMITED
)


class Permission(_Omitting, frozen=True, kw_only=True):
    """Subjects that may, and that may not, be used. Empty allows all."""

    allow: list[str] = []
    deny: list[str] = []


class Responses(msgspec.Struct, frozen=True, kw_only=True):
    """Leave to answer requests: how many messages, and for how many nanoseconds."""

    max: int = 1
    ttl: int = 0


class Permissions(_Omitting, frozen=True, kw_only=True):
    """Which subjects may be used."""

    pub: Permission = Permission()
    sub: Permission = Permission()
    resp: Responses | None = None


class UserPermissions(Permissions, frozen=True, kw_only=True):
    """What a user of an account may do."""

    subs: int = UNLIMITED
    data: int = UNLIMITED
    payload: int = UNLIMITED
    allowed_connection_types: list[str] = []
    src: list[str] = []
    bearer_token: bool = False


UNRESTRICTED: Final = UserPermissions()


def operator_claims(key: Key, name: str, *, system_account: str, signing_keys: tuple[str, ...] = ()) -> str:
    """The operator's statement about itself."""
    key.require(Role.OPERATOR)
    body = {"signing_keys": list(signing_keys), "system_account": system_account}
    return sign(key, key.public, "operator", body, name=name)


def account_claims(
    operator: Key,
    account: str,
    name: str,
    *,
    limits: AccountLimits = UNLIMITED_JETSTREAM,
    signing_keys: tuple[str, ...] = (),
    revoked_users: dict[str, int] | None = None,
    default_permissions: Permissions | None = None,
    imports: list[dict[str, Any]] | None = None,
    exports: list[dict[str, Any]] | None = None,
    description: str = "",
    tags: tuple[str, ...] = (),
) -> str:
    """The operator's statement about an account, named by its public key.

    `revoked_users` maps a user's public key (or `*`) to the second up to which its claims no longer hold.
    """
    operator.require(Role.OPERATOR)
    if limits.tiered_limits and (limits.disk_storage or limits.mem_storage):
        raise ValueError("expected either JetStream limits or tiered_limits, got both")
    body: dict[str, Any] = {"limits": _spelled_out(limits)}
    optional: dict[str, Any] = {
        "signing_keys": list(signing_keys),
        "revocations": revoked_users,
        "default_permissions": default_permissions,
        "imports": imports,
        "exports": exports,
        "description": description,
        "tags": list(tags),
    }
    return sign(
        operator, account, "account", body | {key: value for key, value in optional.items() if value}, name=name
    )


def user_claims(
    account: Key,
    user: str,
    name: str,
    *,
    permissions: UserPermissions = UNRESTRICTED,
    issuer_account: str = "",
    expires_at: int | None = None,
    tags: tuple[str, ...] = (),
) -> str:
    """An account's statement about one of its users. A signing key of the account names the account it signs for."""
    account.require(Role.ACCOUNT)
    body = _spelled_out(permissions)
    if issuer_account:
        body["issuer_account"] = issuer_account
    if tags:
        body["tags"] = list(tags)
    return sign(account, user, "user", body, name=name, expires_at=expires_at)


def issue_user(
    account: Key,
    name: str,
    *,
    permissions: UserPermissions = UNRESTRICTED,
    issuer_account: str = "",
    lifetime: float | None = None,
) -> Credentials:
    """A new user of the account with a key of its own, for `lifetime` seconds or for good."""
    key = Key.generate(Role.USER)
    expires_at = None if lifetime is None else int(time.time() + lifetime)
    jwt = user_claims(
        account, key.public, name, permissions=permissions, issuer_account=issuer_account, expires_at=expires_at
    )
    return Credentials(jwt=jwt, seed=key.seed)


def deletion_claims(operator: Key, accounts: list[str]) -> str:
    """The operator's request to forget accounts."""
    operator.require(Role.OPERATOR)
    return sign(operator, operator.public, "generic", {"accounts": accounts})


def sign(
    issuer: Key, subject: str, kind: str, body: dict[str, Any], *, name: str = "", expires_at: int | None = None
) -> str:
    """Put a statement into the form that the server checks."""
    claims: dict[str, Any] = {"iat": int(time.time()), "iss": issuer.public, "sub": subject}
    if name:
        claims["name"] = name
    if expires_at is not None:
        claims["exp"] = expires_at
    claims["nats"] = body | {"type": kind, "version": VERSION}
    # The server takes no notice of a token that it has had before, even if it has forgotten the account since.
    digest = hashlib.new("sha512_256", msgspec.json.encode(claims) + os.urandom(16)).digest()
    claims["jti"] = base64.b32encode(digest).decode().rstrip("=")
    signed = f"{_HEADER}.{_base64(msgspec.json.encode(claims))}"
    return f"{signed}.{_base64(issuer.sign(signed.encode()))}"


def read(token: str) -> dict[str, Any]:
    """What a JWT says, without checking that it may say so."""
    try:
        payload = token.split(".")[1]
        claims: dict[str, Any] = msgspec.json.decode(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
    except (IndexError, ValueError):
        raise ValueError("expected a JWT of three parts, got something else") from None
    return claims


def format_credentials(credentials: Credentials) -> str:
    """The text of a `.creds` file."""
    return (
        f"-----BEGIN NATS USER JWT-----\n{credentials.jwt}\n------END NATS USER JWT------\n\n"
        "************************* IMPORTANT *************************\n"
        "The seed below is this user's secret: whoever has it can connect as the user.\n\n"
        f"-----BEGIN USER NKEY SEED-----\n{credentials.seed}\n------END USER NKEY SEED------\n"
    )


def _spelled_out(value: msgspec.Struct) -> dict[str, Any]:
    fields: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(value))
    # -1 is a default of ours but not the server's: it has to be said.
    for name in value.__struct_fields__:
        if getattr(value, name) == UNLIMITED or getattr(value, name) is True:
            fields[name] = getattr(value, name)
    return fields


def _base64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


_HEADER: Final = _base64(b'{"typ":"JWT","alg":"ed25519-nkey"}')
