"""A catalog that decides: where a stream begins, which of its messages are read, and that it is left at once."""

from __future__ import annotations

import json
from collections.abc import Mapping

import pytest

from pyspark_nats import Stream
from pyspark_nats.errors import CatalogInvalid, StreamsUnavailable
from tests.spark.engine import Query
from tests.spark.jet import Jet

_listed: dict[str, Stream] = {}


def listed(_: Mapping[str, str]) -> list[Stream]:
    return list(_listed.values())


@pytest.fixture
def catalog() -> dict[str, Stream]:
    _listed.clear()
    return _listed


def query(jet: Jet, **options: str) -> Query:
    return Query(jet.url, catalog=f"{__name__}:listed", **options)


def test_a_stream_begins_where_the_catalog_says(jet: Jet, catalog: dict[str, Stream]) -> None:
    jet.make("A", "B")
    jet.fill("A", 10)
    jet.fill("B", 10)
    catalog["A"] = Stream("A", start=8)
    reading = query(jet)
    assert [row.sequence for row in reading.trigger()] == [8, 9, 10]
    catalog["B"] = Stream("B", start=5)
    assert [(row.stream, row.sequence) for row in reading.trigger()] == [("B", n) for n in range(5, 11)]
    assert reading.trigger() == []


def test_where_it_begins_is_for_those_who_have_not_begun(jet: Jet, catalog: dict[str, Stream]) -> None:
    jet.make("A")
    jet.fill("A", 4)
    catalog["A"] = Stream("A", key="a@1")
    reading = query(jet)
    assert len(reading.trigger()) == 4
    catalog["A"] = Stream("A", key="a@1", start=2)
    assert reading.trigger() == []
    catalog["A"] = Stream("A", key="a@2", start=2)
    assert [(row.stream, row.sequence) for row in reading.trigger()] == [("a@2", 2), ("a@2", 3), ("a@2", 4)]


def test_two_keys_of_one_stream_may_divide_its_subjects(jet: Jet, catalog: dict[str, Stream]) -> None:
    jet.make("POOL")
    for number in range(6):
        jet.publish("POOL", b"x", type="acme.paid" if number % 2 else "globex.paid")
    catalog["POOL"] = Stream("POOL", excluding=("POOL.acme.>",))
    catalog["acme"] = Stream("POOL", key="acme", subjects=("POOL.acme.>",), start=3)
    rows = query(jet).trigger()
    assert [row.sequence for row in rows if row.stream == "POOL"] == [1, 3, 5]
    assert [row.sequence for row in rows if row.stream == "acme"] == [4, 6]


def test_a_stream_that_is_not_listed_any_more_is_left_at_once(jet: Jet, catalog: dict[str, Stream]) -> None:
    jet.make("A", "B")
    jet.fill("A", 10)
    jet.fill("B", 10)
    catalog |= {"A": Stream("A"), "B": Stream("B")}
    reading = query(jet, maxOffsetsPerTrigger="4", drainUnlisted="false")
    reading.trigger()
    del catalog["A"]
    assert {row.stream for row in reading.trigger()} == {"B"}
    assert "A" not in json.loads(reading.log[-1])
    catalog["A"] = Stream("A", start=3)
    assert min(row.sequence for row in reading.trigger() if row.stream == "A") == 3


def test_what_is_not_listed_any_more_is_left_out_of_a_batch_that_is_repeated(
    jet: Jet, catalog: dict[str, Stream]
) -> None:
    jet.make("A", "B")
    jet.fill("A", 3)
    jet.fill("B", 3)
    catalog |= {"A": Stream("A"), "B": Stream("B")}
    reading = query(jet, drainUnlisted="false")
    reading.plan()
    del catalog["A"]
    reading.restart()
    assert {row.stream for row in reading.read(0)} == {"B"}


def test_a_stream_that_goes_while_it_is_read_is_not_passed(jet: Jet, catalog: dict[str, Stream]) -> None:
    """It may have moved: then the catalog will say where to."""
    jet.make("A")
    jet.fill("A", 3)
    catalog["A"] = Stream("A")
    reading = query(jet, drainUnlisted="false", failOnDataLoss="false")
    reading.plan()
    jet.delete("A")
    with pytest.raises(StreamsUnavailable, match="stream A cannot be read"):
        reading.read(0)


def test_a_subject_that_is_none_is_refused() -> None:
    with pytest.raises(CatalogInvalid, match="stream A: expected subjects to be like"):
        Stream("A", excluding=("a..b",))
