"""Addresses of servers, and the secrets that they can hold."""

from __future__ import annotations

import pytest

from nats_bulk.address import parse_addresses


def test_several_servers_with_and_without_ports_and_schemes() -> None:
    first, second, third = parse_addresses("nats://one, tls://two:4333 ,[::1]:5222")
    assert (str(first), first.wants_tls) == ("one:4222", False)
    assert (str(second), second.wants_tls, second.tls_name) == ("two:4333", True, "two")
    assert str(third) == "[::1]:5222"


def test_user_password_and_token_are_read_as_they_are_meant_and_never_shown() -> None:
    (both,) = parse_addresses("nats://bob:p%40s%2Fs@host")
    assert both.login() == {"user": "bob", "pass": "p@s/s"}
    (token,) = parse_addresses("nats://hidden%3Atoken@host")
    assert token.login() == {"auth_token": "hidden:token"}
    (nobody,) = parse_addresses("nats://host")
    assert nobody.login() == {}
    for address in (both, token):
        assert "hidden" not in f"{address} {address!r}"
        assert "p@s" not in f"{address} {address!r}"


@pytest.mark.parametrize("url", ["http://bob:hunter2@host", "nats://bob:hun/ter2@host", "nats://:hunter2@", ""])
def test_what_is_not_an_address_is_refused_without_repeating_it(url: str) -> None:
    with pytest.raises(ValueError, match="expected a server address") as caught:
        parse_addresses(url)
    assert "hunter2" not in str(caught.value)


def test_a_peer_is_checked_against_the_name_that_we_were_given() -> None:
    (known,) = parse_addresses("tls://user:secret@broker.example:4222")
    peer = known.peer("10.0.0.7:4333")
    assert (str(peer), peer.tls_name, peer.wants_tls) == ("10.0.0.7:4333", "broker.example", True)
    assert peer.login() == known.login()
