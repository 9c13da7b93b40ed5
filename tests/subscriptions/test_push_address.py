"""Which URLs may be set, and which addresses connected to. Each hostile case must fail closed."""

from __future__ import annotations

import socket
from ipaddress import ip_network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenantry.errors import TenantInvalid
from tenantry.subscriptions.push_address import AddressGuard, AddressRefused

STRICT = AddressGuard()
LENIENT = AddressGuard([ip_network("10.0.0.0/8"), ip_network("fd00::/8")])

NOT_PUBLIC = [
    "127.0.0.1",
    "127.255.255.254",
    "0.0.0.0",
    "10.0.0.1",
    "100.64.0.1",
    "100.100.100.200",
    "169.254.169.254",
    "172.16.0.1",
    "192.168.1.1",
    "192.0.0.192",
    "192.0.2.1",
    "198.18.0.1",
    "168.63.129.16",
    "224.0.0.1",
    "239.255.255.250",
    "240.0.0.1",
    "255.255.255.255",
    "::",
    "::1",
    "::7f00:1",
    "::ffff:127.0.0.1",
    "::ffff:10.0.0.1",
    "::ffff:169.254.169.254",
    "64:ff9b::7f00:1",
    "64:ff9b::10.0.0.1",
    "64:ff9b:1::a00:1",
    "100::1",
    "2001::1",
    "2001:db8::1",
    "2002:7f00:1::",
    "fc00::1",
    "fd00:ec2::254",
    "fe80::1",
    "fe80::1%lo",
    "fec0::1",
    "ff02::1",
]
PUBLIC = ["93.184.216.34", "8.8.8.8", "2606:4700:4700::1111", "::ffff:8.8.8.8", "64:ff9b::808:808"]


@pytest.mark.parametrize("address", NOT_PUBLIC)
def test_what_is_not_public_is_refused(address: str) -> None:
    assert not STRICT.permits(address, is_encrypted=True)
    with pytest.raises(AddressRefused):
        STRICT.socket_maker(is_encrypted=True)((socket.AF_INET, socket.SOCK_STREAM, 0, "", (address, 443)))


@pytest.mark.parametrize("address", PUBLIC)
def test_what_is_public_passes_but_only_over_tls(address: str) -> None:
    for guard in (STRICT, LENIENT):
        assert guard.permits(address, is_encrypted=True)
        assert not guard.permits(address, is_encrypted=False)


@pytest.mark.parametrize("address", ["10.1.2.3", "::ffff:10.1.2.3", "64:ff9b::10.1.2.3", "fd00::7"])
def test_an_allowed_network_passes_with_and_without_tls(address: str) -> None:
    assert LENIENT.permits(address, is_encrypted=True)
    assert LENIENT.permits(address, is_encrypted=False)


@given(st.ip_addresses(v=4))
def test_an_address_within_another_is_no_better_than_itself(address: object) -> None:
    for wrapped in (f"::ffff:{address}", f"64:ff9b::{address}"):
        assert STRICT.permits(wrapped, is_encrypted=True) == STRICT.permits(str(address), is_encrypted=True)


@pytest.mark.parametrize(
    "url",
    [
        "https://example.com",
        "https://example.com:8443/hook?a=b",
        "https://bücher.example/ü",
        "https://8.8.8.8/",
        "https://[2606:4700:4700::1111]:8443/",
        "https://internal/",
    ],
)
def test_urls_that_may_lead_somewhere_are_taken(url: str) -> None:
    STRICT.require_url(url)


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("", "expected url to be like https://"),
        ("example.com", "expected url to be like https://"),
        ("/hook", "expected url to be like https://"),
        ("https://", "expected url to be like https://"),
        ("https:///hook", "expected url to be like https://"),
        ("ftp://example.com/", "expected url to be like https://"),
        ("file:///etc/passwd", "expected url to be like https://"),
        ("gopher://example.com/", "expected url to be like https://"),
        ("https://example.com:0/", "expected url to be like https://"),
        ("https://example.com:99999/", "expected url to be like https://"),
        ("https://exa mple.com/", "expected url to be like https://"),
        ("https://example.com/\nX: y", "expected url to be like https://"),
        ("https://example.com\\@127.0.0.1/", "expected url to be like https://"),
        ("https://[::1", "expected url to be like https://"),
        ("https://example.com/" + "x" * 2000, "expected url to be like https://"),
        ("http://example.com/", "expected url to begin with https://"),
        ("https://user@example.com/", "expected url to have no user or password"),
        ("https://user:pass@example.com/", "expected url to have no user or password"),
        ("https://example.com/#part", "expected url to have nothing behind a #"),
        ("https://127.0.0.1/", "expected url to lead to a public address"),
        ("https://10.0.0.1/", "expected url to lead to a public address"),
        ("https://169.254.169.254/latest/meta-data", "expected url to lead to a public address"),
        ("https://[::1]/", "expected url to lead to a public address"),
        ("https://[::ffff:10.0.0.1]/", "expected url to lead to a public address"),
        ("https://localhost/", "expected url to lead to a public address"),
        ("https://LOCALHOST./", "expected url to lead to a public address"),
        ("https://a.localhost/", "expected url to lead to a public address"),
        ("https://127.1/", "expected an address in url to be written like"),
        ("https://2130706433/", "expected an address in url to be written like"),
        ("https://0x7f000001/", "expected an address in url to be written like"),
        ("https://0177.0.0.1/", "expected an address in url to be written like"),
    ],
)
def test_urls_that_are_wrong_are_refused_with_the_reason(url: str, problem: str) -> None:
    with pytest.raises(TenantInvalid, match=problem) as caught:
        STRICT.require_url(url)
    assert caught.value.field == "url"
    assert "user:" not in str(caught.value)


def test_an_allowed_network_may_be_set_without_tls_and_others_may_not() -> None:
    LENIENT.require_url("http://10.0.0.7:8080/hook")
    LENIENT.require_url("http://service.internal/hook")
    for url in ("http://127.0.0.1/", "http://8.8.8.8/", "https://192.168.0.1/"):
        with pytest.raises(TenantInvalid, match="push_allowed_networks"):
            LENIENT.require_url(url)
