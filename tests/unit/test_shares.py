"""Deficit round robin, and token buckets, without a server."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenantry.outbox.shares import Shares, Want
from tenantry.tenants.rates import Bucket

WEIGHTS = st.dictionaries(st.sampled_from("abcdefgh"), st.integers(1, 16), min_size=1)


@given(WEIGHTS, st.integers(1, 5000))
def test_shares_follow_the_weights_whatever_they_are(weights: dict[str, int], room: int) -> None:
    shares, sent = Shares(), Counter[str]()
    while sum(sent.values()) < 200 * sum(weights.values()):
        quotas = shares.allot({tenant: Want(weight, 500) for tenant, weight in weights.items()}, room)
        assert quotas, "a round in which nobody may send"
        for tenant, quota in quotas.items():
            shares.spend(tenant, quota)
            sent[tenant] += quota
    total, weight_of_all = sum(sent.values()), sum(weights.values())
    for tenant, weight in weights.items():
        # Nobody is further from its share than what it may send in a round.
        assert abs(sent[tenant] - total * weight / weight_of_all) <= 2 * 500


def test_who_was_blocked_catches_up() -> None:
    shares, sent = Shares(), Counter[str]()
    want = Want(1, 500)
    for number in range(100):
        is_blocked = 10 <= number < 12
        able = {"quick": want} if is_blocked else {"quick": want, "slow": want}
        for tenant, quota in shares.allot(able, 2000, {"slow": want} if is_blocked else {}).items():
            shares.spend(tenant, quota)
            sent[tenant] += quota
    assert sent["quick"] == pytest.approx(sent["slow"], rel=0.01)


def test_a_large_event_is_paid_for_in_the_rounds_that_follow() -> None:
    shares = Shares()
    wants = {"large": Want(1, 10), "small": Want(1, 10)}
    shares.allot(wants, 20)
    shares.spend("large", 100)
    assert "large" not in shares.allot(wants, 20)
    assert shares.allot(wants, 20)["small"] > 0


def test_a_bucket_gives_its_burst_at_once_and_then_its_rate() -> None:
    bucket = Bucket.full(10, 5, now=0.0)
    assert bucket.wait(5, now=0.0) == 0.0
    bucket.take(5, now=0.0)
    assert bucket.wait(1, now=0.0) == pytest.approx(0.1)
    assert bucket.wait(1, now=0.1) == pytest.approx(0.0)
    assert bucket.wait(100, now=0.1) == pytest.approx(0.4), "more than it holds is had when it is full"


def test_a_bucket_that_was_overdrawn_stays_empty_for_longer() -> None:
    bucket = Bucket.full(10, 5, now=0.0)
    bucket.take(25, now=0.0)
    assert bucket.wait(1, now=1.0) == pytest.approx(1.1)


def test_a_clock_that_goes_back_gives_no_tokens() -> None:
    bucket = Bucket.full(10, 5, now=100.0)
    bucket.take(5, now=100.0)
    assert bucket.wait(1, now=50.0) == pytest.approx(0.1)
