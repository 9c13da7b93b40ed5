"""Fair admission: who gets how much of a batch."""

from __future__ import annotations

from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from pyspark_nats.admission import FairAdmission, Shares, Want

wants = st.dictionaries(
    st.sampled_from("abcdefgh"),
    st.builds(Want, st.integers(0, 1000), st.sampled_from([0.25, 0.5, 1.0, 2.0, 3.0, 10.0])),
)


@given(wants, st.integers(0, 3000))
def test_a_batch_is_full_or_everybody_has_all_it_wants(wants: dict[str, Want], room: int) -> None:
    granted = Shares().divide(wants, room)
    assert sum(granted.values()) == min(room, sum(want.pending for want in wants.values()))
    assert all(0 <= amount <= wants[key].pending for key, amount in granted.items())


@given(wants, st.integers(1, 3000))
def test_nobody_gets_less_than_its_share_unless_it_wants_less(wants: dict[str, Want], room: int) -> None:
    granted = Shares().divide(wants, room)
    weight = sum(Fraction(want.weight) for want in wants.values() if want.pending)
    for key, want in wants.items():
        if want.pending:
            share = room * Fraction(want.weight) / weight
            assert granted.get(key, 0) >= min(want.pending, int(share)) - 1


def test_what_one_leaves_goes_to_those_with_work() -> None:
    small = {f"small-{number}": Want(10, 1.0) for number in range(99)}
    granted = FairAdmission().divide({"large": Want(500_000, 1.0)} | small, {}, 10_000)
    assert all(granted[key] == 10 for key in small)
    assert granted["large"] == 10_000 - 990


def test_shares_follow_the_weights_over_many_batches_even_if_a_batch_is_smaller_than_the_number_of_streams() -> None:
    shares = Shares()
    weights = {"a": 1.0, "b": 2.0, "c": 4.0, **{f"d{number}": 1.0 for number in range(20)}}
    totals = dict.fromkeys(weights, 0)
    for _ in range(2700):
        granted = shares.divide({key: Want(1_000_000, weight) for key, weight in weights.items()}, 3)
        assert sum(granted.values()) == 3
        for key, amount in granted.items():
            totals[key] += amount
    for key, weight in weights.items():
        assert abs(totals[key] - 2700 * 3 * weight / 27) <= 2, key


def test_more_streams_are_not_a_larger_share_for_a_group() -> None:
    greedy = {f"greedy-{number}": Want(1000, 1.0) for number in range(9)}
    granted = FairAdmission().divide(
        {"modest": Want(1000, 1.0)} | greedy, {"modest": "m"} | dict.fromkeys(greedy, "g"), 1000
    )
    assert granted["modest"] == 500
    assert sum(granted[key] for key in greedy) == 500
    assert max(granted[key] for key in greedy) - min(granted[key] for key in greedy) <= 1


def test_a_group_never_has_more_than_it_may_and_leaves_the_rest_to_the_others() -> None:
    flood = {"events": Want(500_000, 1.0, 0.25), "properties": Want(500_000, 1.0, 0.25)}
    groups = dict.fromkeys(flood, "flood")
    alone = FairAdmission().divide(flood, groups, 1000)
    assert alone == {"events": 125, "properties": 125}
    granted = FairAdmission().divide(flood | {"other": Want(900, 1.0)}, groups, 1000)
    assert granted == {"events": 125, "properties": 125, "other": 750}
    assert FairAdmission().divide({"one": Want(10, 1.0, 0.001)}, {}, 10) == {"one": 1}


def test_who_had_nothing_to_read_does_not_catch_up_later() -> None:
    shares = Shares()
    for _ in range(10):
        shares.divide({"busy": Want(1000, 1.0), "idle": Want(0, 1.0)}, 100)
    assert shares.divide({"busy": Want(1000, 1.0), "idle": Want(1000, 1.0)}, 100) == {"busy": 50, "idle": 50}
