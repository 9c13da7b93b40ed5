"""How the Spark source lays out a batch and writes down where it is."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from pyspark_nats.layout import Ranges, cut, lay_out, worthwhile_tasks
from pyspark_nats.offsets import Offset

keys = st.text("ABC", min_size=1, max_size=4)
ranges = st.dictionaries(keys, st.tuples(st.integers(1, 50), st.integers(0, 300)), min_size=1).map(
    lambda drawn: {key: (first, first + more) for key, (first, more) in sorted(drawn.items())}
)
sizes = st.dictionaries(keys, st.floats(1, 5000))


def together(tasks: list[Ranges]) -> dict[str, list[int]]:
    sequences: dict[str, list[int]] = {}
    for task in tasks:
        for key, (first, last) in task.items():
            sequences.setdefault(key, []).extend(range(first, last + 1))
    return sequences


@given(ranges, sizes, st.integers(1, 12), st.booleans())
def test_tasks_cover_a_batch_exactly_and_in_order(
    ranges: Ranges, sizes: dict[str, float], tasks: int, split: bool
) -> None:
    laid_out = lay_out(ranges, cut(ranges, sizes, tasks, split=split))
    assert together(laid_out) == {key: list(range(first, last + 1)) for key, (first, last) in ranges.items()}
    assert len(laid_out) <= tasks
    assert all(laid_out)
    if not split:
        assert sum(map(len, laid_out)) == len(ranges), "a stream is in two tasks"


@given(ranges, sizes, st.integers(1, 12))
def test_without_order_no_task_has_much_more_than_its_part(ranges: Ranges, sizes: dict[str, float], tasks: int) -> None:
    laid_out = lay_out(ranges, cut(ranges, sizes, tasks, split=True))
    weights = [
        sum((last - first + 1) * sizes.get(key, 1.0) for key, (first, last) in task.items()) for task in laid_out
    ]
    one_message = max([*sizes.values(), 1.0])
    assert max(weights) <= sum(weights) / tasks + one_message * 1.01


def test_a_stream_as_large_as_all_others_gets_a_task_of_its_own() -> None:
    ranges = {"A": (1, 10), "HUGE": (1, 10_000), "P": (1, 10), "Q": (1, 10), "Z": (1, 10)}
    laid_out = lay_out(ranges, cut(ranges, dict.fromkeys(ranges, 1.0), 3, split=False))
    assert [list(task) for task in laid_out] == [["A"], ["HUGE"], ["P", "Q", "Z"]]


def test_as_many_streams_as_you_like_make_no_more_tasks() -> None:
    ranges = {f"TENANT_{number:04}": (1, 200) for number in range(1000)}
    sizes = dict.fromkeys(ranges, 250.0)
    laid_out = lay_out(ranges, cut(ranges, sizes, 4, split=False))
    assert [len(task) for task in laid_out] == [250, 250, 250, 250]


def test_little_data_is_not_worth_many_tasks() -> None:
    ranges = {"A": (1, 10), "B": (1, 10)}
    assert worthwhile_tasks(ranges, {"A": 250.0, "B": 250.0}, 8) == 1
    assert worthwhile_tasks({"A": (1, 1_000_000)}, {"A": 250.0}, 8) == 8


@given(
    st.builds(
        Offset,
        st.dictionaries(keys, st.integers(1)),
        st.dictionaries(keys, st.integers(1)),
        st.dictionaries(keys, st.integers(1)),
        st.lists(st.tuples(keys, st.integers(1))),
        st.dictionaries(keys, st.integers(1)),
    )
)
def test_an_offset_is_the_same_after_the_checkpoint_and_as_text(offset: Offset) -> None:
    text = json.dumps(offset.document())
    again = Offset.parse(json.loads(text))
    assert again == offset
    assert json.dumps(again.document()) == text


def test_the_offset_says_where_new_streams_begin() -> None:
    start = Offset({"A": 10, "GONE": 5})
    end = Offset({"A": 15, "GONE": 5, "NEW": 9}, begins={"NEW": 7})
    assert end.ranges_since(start) == {"A": (10, 14), "NEW": (7, 8)}
