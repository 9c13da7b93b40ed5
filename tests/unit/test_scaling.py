"""How many workers are wanted, by what they told of themselves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenantry.subscriptions.scaling import (
    MEASURED_SECONDS,
    Bounds,
    Pace,
    Reading,
    Sample,
    decide,
    measure,
)

WIDE = Bounds(1, 1000)
MANY = 1000
"""Partitions: enough for any number of workers."""


def sample(at: float = 0.0, workers: int = 1, cost: float | None = None, **figures: float) -> Sample:
    return Sample(at, workers, seconds_per_event=cost, **{"partitions": MANY, "behind": MANY, **figures})  # type: ignore[arg-type]


# What readings say


def course(*figures: Mapping[str, float]) -> list[Reading]:
    """A reading a second."""
    return [Reading.of(second, each) for second, each in enumerate(figures)]


def steady(events: int, busy: float, cpu: float, slots: int = 1, seconds: int = 5, lag: int = 0) -> list[Reading]:
    """So many events a second, for each of which a slot and a processor are taken for so long."""
    return course(
        *(
            {
                "partitions": 3,
                "slots": slots,
                "lag": lag,
                "handled": events * second,
                "busy_seconds": events * second * busy,
                "cpu_seconds": events * second * cpu,
            }
            for second in range(seconds + 1)
        )
    )


def test_an_event_costs_what_takes_longer_a_share_of_all_slots_or_the_processor() -> None:
    waiting = measure(5, 1, [steady(events=100, busy=0.4, cpu=0.0001, slots=200)])
    assert waiting.seconds_per_event == pytest.approx(0.002)
    working = measure(5, 1, [steady(events=100, busy=0.4, cpu=0.009, slots=200)])
    assert working.seconds_per_event == pytest.approx(0.009)


def test_what_an_idle_process_uses_is_not_for_its_events() -> None:
    idle = measure(5, 1, [steady(events=1, busy=0.01, cpu=0.05)])
    assert idle.seconds_per_event == pytest.approx(0.01)


def test_rates_and_lags_of_all_workers_are_added() -> None:
    found = measure(5, 2, [steady(100, 0.001, 0, lag=7), steady(50, 0.001, 0, lag=5)])
    assert found.events_per_second == pytest.approx(150)
    assert found.arrivals_per_second == pytest.approx(150)
    assert (found.lag, found.partitions, found.behind, found.workers) == (12, 6, 6, 2)
    counted = measure(0, 1, [[Reading(0, partitions=9, behind=2)]])
    assert counted.behind == 2


def test_what_comes_in_is_what_is_handled_and_what_the_lag_grows_by() -> None:
    growing = course(*({"handled": 10 * n, "lag": 40 * n, "busy_seconds": n} for n in range(6)))
    assert measure(5, 1, [growing]).arrivals_per_second == pytest.approx(50)
    draining = course(*({"handled": 100 * n, "lag": 1000 - 90 * n, "busy_seconds": n} for n in range(6)))
    assert measure(5, 1, [draining]).arrivals_per_second == pytest.approx(10)


def test_lag_that_came_with_a_tenant_is_no_arrival() -> None:
    taken_over = course(
        {"partitions": 1, "lag": 0, "handled": 0},
        {"partitions": 1, "lag": 0, "handled": 10},
        {"partitions": 2, "lag": 5000, "handled": 20},
        {"partitions": 2, "lag": 5000, "handled": 30},
    )
    assert measure(3, 1, [taken_over]).arrivals_per_second == pytest.approx(10)


def test_counters_that_begin_anew_are_not_taken_for_work_undone() -> None:
    before, after = steady(100, 0.005, 0.001, seconds=4), steady(100, 0.005, 0.001, seconds=4)
    restarted = [*before, *(each._replace(at=each.at + 5) for each in after)]
    found = measure(9, 1, [restarted])
    assert found.seconds_per_event == pytest.approx(0.005)
    assert found.events_per_second == pytest.approx(100)


def test_nothing_is_known_without_a_second_reading() -> None:
    assert measure(0, 1, [[Reading(0, lag=5)], []]) == Sample(0, 1, lag=5)
    assert measure(0, 0, []) == Sample(0, 0)


def test_what_was_long_ago_does_not_count() -> None:
    readings = steady(100, 0.005, 0)
    assert measure(readings[-1].at + MEASURED_SECONDS + 1, 1, [readings]).seconds_per_event is None


# How many are wanted


@pytest.mark.parametrize(
    ("figures", "wanted"),
    [
        ({"lag": 0, "cost": 0.01}, 8),
        ({"lag": 8_000, "cost": 0.01}, 8),
        ({"lag": 8_001, "cost": 0.01}, 9),
        ({"lag": 12_000, "cost": 0.01}, 12),
        ({"lag": 100_000, "cost": 0.01}, 16),
        ({"arrivals_per_second": 640, "cost": 0.01}, 8),
        ({"arrivals_per_second": 800, "cost": 0.01}, 10),
        ({"arrivals_per_second": 640, "lag": 2000, "cost": 0.01}, 10),
        ({"lag": 100_000, "cost": 0.01, "partitions": 11}, 11),
        ({"lag": 100_000, "cost": 0.01, "partitions": 2}, 8),
        ({"lag": 100_000, "cost": 0.01, "behind": 12}, 12),
        ({"lag": 100_000, "cost": 0.01, "behind": 3}, 8),
        ({"lag": 100_000, "cost": 0.01, "behind": 3, "arrivals_per_second": 560}, 10),
        ({"lag": 5, "running": 2}, 9),
        ({"lag": 5, "running": 2, "behind": 1}, 8),
        ({"lag": 5, "running": 0}, 8),
        ({}, 8),
    ],
)
def test_more_are_wanted_at_once_and_at_most_twice_as_many(figures: dict[str, float], wanted: int) -> None:
    assert decide([sample(workers=8, **figures)], WIDE).wanted == wanted


def test_without_anything_known_it_is_as_few_as_may_be() -> None:
    assert decide([], Bounds(2, 5)).wanted == 2
    assert decide([sample(workers=0)], Bounds(2, 5)).wanted == 2


def test_what_an_event_costs_is_known_for_a_while_after_the_last() -> None:
    found = decide([sample(0, 8, cost=0.01), sample(30, 8, lag=12_000)], WIDE)
    assert (found.wanted, found.seconds_per_event) == (12, 0.01)


def quiet(seconds: int, workers: int, since: int = 0) -> list[Sample]:
    return [sample(since + second, workers, cost=0.001) for second in range(seconds + 1)]


def test_one_goes_only_when_fewer_were_enough_for_a_while() -> None:
    assert decide(quiet(29, 4), WIDE).wanted == 4
    assert decide(quiet(30, 4), WIDE).wanted == 3
    busy = sample(15, 4, cost=0.01, lag=4000)
    assert decide([*quiet(14, 4), busy, *quiet(16, 4, since=16)], WIDE).wanted == 4


def test_after_one_went_the_next_stays_as_long_again() -> None:
    assert decide([*quiet(30, 4), *quiet(29, 3, since=31)], WIDE).wanted == 3
    assert decide([*quiet(30, 4), *quiet(30, 3, since=31)], WIDE).wanted == 2


@given(
    st.lists(
        st.builds(
            sample,
            at=st.floats(0, 100),
            workers=st.integers(0, 50),
            cost=st.none() | st.floats(0, 100),
            lag=st.integers(0, 10**9),
            running=st.integers(0, 1000),
            arrivals_per_second=st.floats(0, 1e9),
        ),
        max_size=20,
    ),
    st.integers(1, 50),
    st.integers(0, 50),
)
def test_it_stays_within_bounds_and_takes_no_larger_steps(samples: list[Sample], least: int, more: int) -> None:
    bounds = Bounds(least, least + more)
    samples.sort(key=lambda each: each.at)
    found = decide(samples, bounds)
    assert bounds.least <= found.wanted <= bounds.most
    if samples:
        there = samples[-1].workers
        assert found.wanted <= max(2 * there, bounds.least, 1)
        assert found.wanted >= min(there - 1, bounds.most)


_counters = st.tuples(st.integers(0, 10**6), st.floats(0, 1e6), st.floats(0, 1e6), st.integers(0, 10**6))


@given(st.lists(st.lists(_counters, max_size=12), max_size=4))
def test_whatever_counters_do_nothing_is_below_zero(told: list[list[tuple[int, float, float, int]]]) -> None:
    history = [
        [Reading(at, 1, 1, 4, 0, lag, handled, busy, cpu) for at, (handled, busy, cpu, lag) in enumerate(each)]
        for each in told
    ]
    found = measure(12, len(told), history)
    assert min(found.events_per_second, found.arrivals_per_second, found.seconds_per_event or 0) >= 0


# A fleet, second by second


def simulate(arrivals: Sequence[int], cost: float, bounds: Bounds, pace: Pace) -> list[int]:
    """How many workers there are, with so many events coming in each second."""
    workers, lag, handled, busy = bounds.least, 0, 0, 0.0
    readings: list[Reading] = []
    samples: list[Sample] = []
    counts = []
    for second, came in enumerate(arrivals):
        done = min(lag + came, int(workers / cost))
        lag, handled, busy = lag + came - done, handled + done, busy + done * cost
        readings.append(Reading(second, MANY, MANY, 1, workers if done else 0, lag, handled, busy, 0.0))
        samples.append(measure(second, workers, [readings]))
        workers = decide(samples, bounds, pace).wanted
        counts.append(workers)
    return counts


def test_a_burst_is_met_and_forgotten_without_flapping() -> None:
    counts = simulate([10] * 20 + [400] * 60 + [10] * 400, cost=0.02, bounds=Bounds(1, 20), pace=Pace())
    assert max(counts) >= 9
    grown = counts.index(max(counts))
    assert counts[:grown] == sorted(counts[:grown])
    assert counts[grown:] == sorted(counts[grown:], reverse=True)
    assert counts[-1] == 1


@given(st.integers(1, 800), st.floats(0.001, 0.02))
def test_a_steady_rate_ends_with_a_steady_number(rate: int, cost: float) -> None:
    counts = simulate([rate] * 300, cost, Bounds(1, 40), Pace())
    settled = counts[-60:]
    assert settled == sorted(settled, reverse=True)
    assert settled[-1] * 1.0 >= rate * cost
    assert all(after - before <= before for before, after in pairwise(counts))
