"""Keys that are derived from the master secret, so that none has to be stored.

The same name gives the same key, on every machine and after every crash: what is derived cannot be lost halfway.
"""

from __future__ import annotations

import hashlib
import hmac
from typing import Final
from uuid import UUID

from tenantry.errors import ConfigError
from tenantry.nats.keys import Key, Role

SHORTEST_SECRET: Final = 16


class Keyring:
    """Whoever has the master secret has every key; keep it like one."""

    def __init__(self, secret: str) -> None:
        if len(secret) < SHORTEST_SECRET:
            raise ConfigError(
                f"expected the master secret to have at least {SHORTEST_SECRET} characters, got {len(secret)}; "
                "make one with `openssl rand -base64 32` and set TENANTRY_SECRET"
            )
        self._secret = secret.encode()

    def account(self, tenant: UUID) -> Key:
        """The key of a tenant's NATS account."""
        return Key.derive(Role.ACCOUNT, self._derive(f"account/{tenant}"))

    def copy_token(self, move: UUID) -> str:
        """A word in subjects that nobody can guess, even who knows of the move."""
        return self._derive(f"move/{move}").hex()[:32]

    def push_secret(self, endpoint: UUID, version: int) -> bytes:
        """What deliveries to an endpoint are signed with; every rotation counts the version up."""
        return self._derive(f"push/{endpoint}/{version}")

    @property
    def audit(self) -> bytes:
        """What the audit log is sealed with."""
        return self._derive("audit")

    def _derive(self, name: str) -> bytes:
        return hmac.digest(self._secret, f"tenantry/{name}".encode(), hashlib.sha256)
