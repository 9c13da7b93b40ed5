"""Keys and claims, as far as they can be judged without a server."""

from __future__ import annotations

import time

import pytest

from nats_bulk import AuthenticationFailed, Credentials
from tenantry.nats import claims
from tenantry.nats.keys import Key, Role


@pytest.mark.parametrize("role", list(Role))
def test_a_key_shows_what_it_is_for_and_hides_its_seed(role: Role) -> None:
    key = Key.generate(role)
    assert key.public.startswith(role.letter)
    assert key.seed.startswith("S" + role.letter)
    assert key.seed not in repr(key)
    assert Key(key.seed).public == key.public
    assert len(key.public) == 56


@pytest.mark.parametrize("seed", ["", "nonsense", "SUAAAA"])
def test_what_is_not_a_seed_is_refused_without_repeating_it(seed: str) -> None:
    with pytest.raises(ValueError, match="expected an NKEY seed") as caught:
        Key(seed)
    assert not seed or seed not in str(caught.value)


def test_only_the_right_kind_of_key_signs() -> None:
    user, account, operator = (Key.generate(role) for role in (Role.USER, Role.ACCOUNT, Role.OPERATOR))
    with pytest.raises(ValueError, match="key of an operator"):
        claims.account_claims(account, account.public, "x")
    with pytest.raises(ValueError, match="key of an account"):
        claims.user_claims(operator, user.public, "x")


def test_limits_are_spelled_as_the_server_reads_them() -> None:
    operator, account = Key.generate(Role.OPERATOR), Key.generate(Role.ACCOUNT)
    limits = claims.AccountLimits(
        mem_storage=1,
        disk_storage=2,
        streams=3,
        consumer=4,
        max_ack_pending=5,
        mem_max_stream_bytes=6,
        disk_max_stream_bytes=7,
        max_bytes_required=True,
        conn=8,
        leaf=0,
    )
    said = claims.read(claims.account_claims(operator, account.public, "acme", limits=limits))
    assert said["nats"]["limits"] == {
        "mem_storage": 1,
        "disk_storage": 2,
        "streams": 3,
        "consumer": 4,
        "max_ack_pending": 5,
        "mem_max_stream_bytes": 6,
        "disk_max_stream_bytes": 7,
        "max_bytes_required": True,
        "conn": 8,
        "leaf": 0,
        "subs": -1,
        "data": -1,
        "payload": -1,
        "imports": -1,
        "exports": -1,
        "wildcards": True,
    }
    assert (said["iss"], said["sub"], said["nats"]["version"]) == (operator.public, account.public, 2)


def test_plain_and_tiered_limits_do_not_mix() -> None:
    operator = Key.generate(Role.OPERATOR)
    both = claims.AccountLimits(disk_storage=1, tiered_limits={"R1": claims.JetStreamLimits(disk_storage=1)})
    with pytest.raises(ValueError, match="tiered_limits"):
        claims.account_claims(operator, Key.generate(Role.ACCOUNT).public, "x", limits=both)


def test_credentials_survive_their_file_format_and_hide_in_repr() -> None:
    issued = claims.issue_user(Key.generate(Role.ACCOUNT), "user")
    assert Credentials.from_text(claims.format_credentials(issued)) == issued
    assert issued.seed not in repr(issued)
    assert issued.jwt not in repr(issued)
    with pytest.raises(AuthenticationFailed, match="NATS USER JWT"):
        Credentials.from_text("nothing")


def test_what_is_not_a_jwt_is_refused() -> None:
    with pytest.raises(ValueError, match="three parts"):
        claims.read("nonsense")


def test_a_lifetime_of_nothing_has_ended_already() -> None:
    issued = claims.issue_user(Key.generate(Role.ACCOUNT), "user", lifetime=0)
    assert 0 < claims.read(issued.jwt)["exp"] <= time.time()
