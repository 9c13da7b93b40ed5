"""Which subjects a subscriber's consumer is for."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenantry.event import type_expression
from tenantry.nats.connections import Broker
from tenantry.subscriptions.durables import filters
from tenantry.tenants.lanes import Lane

LANE = Lane("acme", "events", "S", "app.tenants.acme.events", Broker("nats://nowhere"), "")
words = st.sampled_from(["a", "b", "*"])
patterns = st.builds(
    lambda path, end: ".".join([*path, *end]), st.lists(words, min_size=1, max_size=3), st.sampled_from([[], [">"]])
)
types = st.lists(st.sampled_from(["a", "b"]), min_size=1, max_size=4).map(".".join)


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        (("order.*",), ["order.*"]),
        ((">",), [">"]),
        (("order.*", "order.created"), ["order.*"]),
        (("order.>", "order.*", "order"), ["order.>", "order"]),
        (("a", "b"), ["a", "b"]),
        (("order.*", "*.paid"), [">"]),
        (("order.created", "order.created"), ["order.created"]),
    ],
)
def test_filters_do_not_overlap(wanted: tuple[str, ...], expected: list[str]) -> None:
    assert filters(LANE, wanted) == [f"{LANE.prefix}.{each}" for each in expected]


def matches(subjects: list[str], type: str) -> int:
    """How many of the filters match, as the server does it."""
    found = 0
    for subject in subjects:
        pattern = subject.removeprefix(f"{LANE.prefix}.")
        found += bool(re.match(type_expression([pattern]), type))
    return found


@given(st.lists(patterns, min_size=1, max_size=4).map(tuple), types)
def test_whatever_is_wanted_matches_one_filter_and_never_two(wanted: tuple[str, ...], type: str) -> None:
    subjects = filters(LANE, wanted)
    assert matches(subjects, type) <= 1
    if re.match(type_expression(wanted), type):
        assert matches(subjects, type) == 1
