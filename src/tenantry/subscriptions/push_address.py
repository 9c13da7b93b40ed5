"""Where events may be pushed to: whoever chooses the URL must not reach what only we can reach.

A URL is looked at when it is set, for the sake of a clear answer. What counts is the check of each address when it is
connected to: names may resolve to something else by then.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterable
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address
from typing import Any, Final

from yarl import URL

from tenantry.errors import TenantInvalid

LONGEST_URL: Final = 2000

Network = IPv4Network | IPv6Network
Address = IPv4Address | IPv6Address
AddressInfo = tuple[int | socket.AddressFamily, int | socket.SocketKind, int, str, tuple[Any, ...]]

_GLOBAL_UNICAST: Final = IPv6Network("2000::/3")
_NAT64: Final = IPv6Network("64:ff9b::/96")
_PUBLIC_BY_NAME_ONLY: Final = (
    # Not wholly private to every Python, and some clouds keep credentials there.
    IPv4Network("192.0.0.0/24"),
    # Azure's own services for the machine, at an address that looks like any other.
    IPv4Network("168.63.129.16/32"),
)


class AddressRefused(OSError):
    """An address that must not be connected to. It does not say which: no tenant need learn what a name leads to."""

    def __init__(self) -> None:
        super().__init__("the address is not a public one")


class AddressGuard:
    """Lets public addresses pass, over TLS, and whatever lies in the networks that an operator allows."""

    def __init__(self, allowed: Iterable[Network] = ()) -> None:
        self._allowed = tuple(allowed)

    def require_url(self, url: str) -> None:
        """Raise if it is plain already that nothing can be delivered there."""
        parsed = _parse(url)
        if parsed.scheme == "http" and not self._allowed:
            raise TenantInvalid("url", f"expected url to begin with https://, got: {url[:80]!r}")
        literal = _literal(parsed.host or "")
        if literal is not None and not self.permits(literal, is_encrypted=parsed.scheme == "https"):
            raise TenantInvalid(
                "url",
                f"expected url to lead to a public address with https://, got: {url[:80]!r}; "
                "an operator can allow networks with push_allowed_networks",
            )

    def permits(self, address: str, *, is_encrypted: bool) -> bool:
        given = ip_address(address)
        reached = _reached(given)
        if any(each in network for each in (given, reached) for network in self._allowed):
            return True
        return is_encrypted and _is_public(reached)

    def socket_maker(self, *, is_encrypted: bool) -> Callable[[AddressInfo], socket.socket]:
        """Makes the sockets of a connector: for an address that is not permitted, none."""

        def make(info: AddressInfo) -> socket.socket:
            family, kind, protocol, _, address = info
            if not self.permits(address[0], is_encrypted=is_encrypted):
                raise AddressRefused
            return socket.socket(family, kind, protocol)

        return make


def _parse(url: str) -> URL:
    problem = f"expected url to be like https://example.com/events, at most {LONGEST_URL} characters, got: {url[:80]!r}"
    if len(url) > LONGEST_URL or not url.isprintable() or set(url) & set(" \\"):
        raise TenantInvalid("url", problem)
    try:
        parsed = URL(url)
        # It is only read when it is asked for.
        _ = parsed.port
    except ValueError:
        raise TenantInvalid("url", problem) from None
    if parsed.scheme not in ("http", "https") or not parsed.host or parsed.port == 0:
        raise TenantInvalid("url", problem)
    if "@" in parsed.raw_authority:
        raise TenantInvalid(
            "url", "expected url to have no user or password; deliveries are signed, which says more than a password"
        )
    if parsed.raw_fragment:
        raise TenantInvalid(
            "url", f"expected url to have nothing behind a #, for that is never sent, got: {url[:80]!r}"
        )
    return parsed


def _literal(host: str) -> str | None:
    """The address, if the host is one."""
    if host.rstrip(".").lower().rpartition(".")[2] == "localhost":
        return "127.0.0.1"
    try:
        return str(ip_address(host))
    except ValueError:
        pass
    try:
        socket.inet_aton(host)
    except (OSError, UnicodeError):
        return None
    raise TenantInvalid("url", f"expected an address in url to be written like 203.0.113.7, got: {host[:80]!r}")


def _reached(address: Address) -> Address:
    """The IPv4 address that an IPv6 address stands for, if it stands for one."""
    if isinstance(address, IPv6Address):
        if address.ipv4_mapped is not None:
            return address.ipv4_mapped
        if address in _NAT64:
            return IPv4Address(int(address) & 0xFFFF_FFFF)
    return address


def _is_public(address: Address) -> bool:
    if not address.is_global or address.is_multicast or address.is_reserved:
        return False
    if isinstance(address, IPv6Address):
        # Tunnels lead to an IPv4 address that is written inside, and nobody has a server behind one any more.
        return address in _GLOBAL_UNICAST and address.sixtofour is None and address.teredo is None
    return not any(address in network for network in _PUBLIC_BY_NAME_ONLY)
