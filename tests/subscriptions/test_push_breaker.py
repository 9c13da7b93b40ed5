"""The breaker of an endpoint, on a clock of the test's own."""

from __future__ import annotations

import uuid

from hypothesis import given
from hypothesis import strategies as st

from tenantry.subscriptions.push_breaker import FAILURES, FIRST_PAUSE, LONGEST_PAUSE, Breaker, Breakers


def steady() -> Breaker:
    """One whose pauses are as long as they can be."""
    return Breaker(chance=lambda: 1.0)


def broken(now: float = 0.0) -> Breaker:
    breaker = steady()
    for _ in range(FAILURES):
        assert breaker.allows(now)
        breaker.failed(now)
    return breaker


def test_it_opens_after_so_many_failures_in_a_row() -> None:
    breaker = steady()
    for _ in range(FAILURES - 1):
        breaker.failed(0.0)
    breaker.succeeded()
    for _ in range(FAILURES - 1):
        breaker.failed(0.0)
        assert breaker.allows(0.0)
        assert breaker.wait_seconds(0.0) == 0
    breaker.failed(0.0)
    assert not breaker.allows(0.0)
    assert breaker.opens_at == breaker.wait_seconds(0.0) == FIRST_PAUSE


def test_after_the_pause_one_may_try_and_a_success_closes_it() -> None:
    breaker = broken()
    assert not breaker.allows(FIRST_PAUSE - 0.1)
    assert breaker.allows(FIRST_PAUSE)
    assert not breaker.allows(FIRST_PAUSE)
    breaker.succeeded()
    assert breaker.opens_at is None
    assert all(breaker.allows(FIRST_PAUSE) for _ in range(10))


def test_the_pause_doubles_with_each_failed_trial_up_to_the_longest() -> None:
    breaker, now, pauses = broken(), 0.0, []
    for _ in range(9):
        pauses.append(breaker.wait_seconds(now))
        now += pauses[-1]
        assert breaker.allows(now)
        breaker.failed(now)
    assert pauses == [5, 10, 20, 40, 80, 160, 300, 300, 300]
    assert breaker.allows(now + LONGEST_PAUSE)
    breaker.succeeded()
    for _ in range(FAILURES):
        breaker.failed(now)
    assert breaker.wait_seconds(now) == FIRST_PAUSE


def test_failures_that_began_before_the_pause_do_not_make_it_longer() -> None:
    breaker = broken()
    for _ in range(20):
        breaker.failed(1.0)
    assert breaker.opens_at == FIRST_PAUSE


def test_a_trial_that_nobody_tells_of_is_followed_by_another() -> None:
    breaker = broken()
    assert breaker.allows(FIRST_PAUSE)
    assert breaker.wait_seconds(FIRST_PAUSE) == FIRST_PAUSE
    assert breaker.allows(2 * FIRST_PAUSE)


@given(st.floats(0, 1, exclude_max=True), st.lists(st.tuples(st.floats(0, 1000), st.booleans()), max_size=60))
def test_whatever_happens_somebody_is_let_through_in_the_end(chance: float, steps: list[tuple[float, bool]]) -> None:
    breaker, now, failures = Breaker(chance=lambda: chance), 0.0, 0
    for seconds, is_good in steps:
        now += seconds
        was_closed = breaker.opens_at is None
        if not breaker.allows(now):
            assert 0 < breaker.wait_seconds(now) <= LONGEST_PAUSE
            continue
        failures = 0 if is_good else failures + 1
        breaker.succeeded() if is_good else breaker.failed(now)
        assert (breaker.opens_at is None) == (is_good or (was_closed and failures < FAILURES))
    assert breaker.wait_seconds(now) <= LONGEST_PAUSE
    assert breaker.allows(now + LONGEST_PAUSE)


def test_each_endpoint_has_its_own_until_it_is_gone() -> None:
    breakers, one, other = Breakers(steady), uuid.uuid4(), uuid.uuid4()
    for _ in range(FAILURES):
        breakers.of(one).failed(0.0)
    assert not breakers.of(one).allows(0.0)
    assert breakers.of(other).allows(0.0)
    breakers.keep([one])
    assert not breakers.of(one).allows(0.0)
    breakers.keep([])
    assert breakers.of(one).allows(0.0)
