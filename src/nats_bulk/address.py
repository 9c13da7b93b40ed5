"""Where a server is: what a URL, or a server that tells of its peers, says about it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Final
from urllib.parse import unquote, urlsplit

DEFAULT_PORT: Final = 4222


@dataclass(frozen=True, slots=True)
class Address:
    """One server. User, password and token stay out of `repr` and `str`."""

    host: str
    port: int
    wants_tls: bool = False
    tls_name: str = ""
    """The name that the server's certificate must bear."""
    user: str = field(default="", repr=False)
    password: str | None = field(default=None, repr=False)

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    def login(self) -> dict[str, str]:
        """What CONNECT says of user and password; a user alone is a token."""
        if not self.user:
            return {}
        return {"auth_token": self.user} if self.password is None else {"user": self.user, "pass": self.password}

    def peer(self, place: str) -> Address:
        """A server that this one told us about, as host:port. Its certificate bears the name that we know."""
        parts = urlsplit(f"nats://{place}")
        return replace(self, host=parts.hostname or self.host, port=parts.port or DEFAULT_PORT)


def parse_addresses(url: str) -> list[Address]:
    """Read one or more addresses, separated by commas."""
    return [_parse(part.strip()) for part in url.split(",")]


def _parse(url: str) -> Address:
    try:
        parts = urlsplit(url if "://" in url else f"nats://{url}")
        host, port = parts.hostname, parts.port
    except ValueError:
        host = port = None
    if host is None or parts.scheme not in ("nats", "tls") or parts.path.strip("/"):
        # Without the URL itself: it may hold a password.
        raise ValueError(
            "expected a server address like nats://host:4222 or tls://user:password@host:4222, with special characters "
            "of the password as %XX, got something else"
        )
    return Address(
        host=host,
        port=port or DEFAULT_PORT,
        wants_tls=parts.scheme == "tls",
        tls_name=host,
        user=unquote(parts.username or ""),
        password=None if parts.password is None else unquote(parts.password),
    )
