"""Events and subjects: what is valid, and what the error names when it is not."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenantry import event
from tenantry.errors import EventInvalid, SubjectInvalid
from tenantry.event import Event, Subject

MINIMAL = {"specversion": "1.0", "id": "1", "source": "/shop", "type": "order.created"}


def document(**changes: object) -> bytes:
    members = {name: value for name, value in (MINIMAL | changes).items() if value is not ...}
    return json.dumps(members).encode()


def test_all_attributes_and_extensions_are_read() -> None:
    read = event.decode(
        document(
            subject="order/5",
            time="2026-11-15T10:00:00Z",
            datacontenttype="application/json",
            dataschema="https://example.com/order",
            data={"total": 5},
            traceparent="00-abc",
            priority=3,
            urgent=True,
        )
    )
    assert (read.id, read.source, read.type, read.subject) == ("1", "/shop", "order.created", "order/5")
    assert read.time == datetime(2026, 11, 15, 10, tzinfo=UTC)
    assert bytes(read.data) == b'{"total": 5}'
    assert read.extensions == {"traceparent": "00-abc", "priority": 3, "urgent": True}


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"id": ...}, "id"),
        ({"id": ""}, "id"),
        ({"id": 5}, "id"),
        ({"id": "x" * 257}, "id"),
        ({"id": "a\nb"}, "id"),
        ({"source": ...}, "source"),
        ({"source": ""}, "source"),
        ({"type": ...}, "type"),
        ({"type": "order created"}, "type"),
        ({"type": "order.*"}, "type"),
        ({"type": ".order"}, "type"),
        ({"type": "a." * 150 + "a"}, "type"),
        ({"specversion": ...}, "specversion"),
        ({"specversion": "0.3"}, "specversion"),
        ({"time": "yesterday"}, "time"),
        ({"time": "2026-11-15T10:00:00"}, "time"),
        ({"subject": 1}, "subject"),
        ({"data": 1, "data_base64": "AA=="}, "data_base64"),
        ({"Bad-Name": "x"}, "Bad-Name"),
        ({"nested": {"a": 1}}, "nested"),
    ],
)
def test_an_invalid_event_gets_an_error_that_names_the_field(changes: dict[str, object], field: str) -> None:
    with pytest.raises(EventInvalid) as caught:
        event.decode(document(**changes))
    assert caught.value.field == field
    assert field in str(caught.value)


@pytest.mark.parametrize("raw", [b"", b"{", b"[]", b"\xff\xfe", b"null", b'"text"', b"[" * 100_000])
def test_what_is_not_an_event_at_all_is_refused(raw: bytes) -> None:
    with pytest.raises(EventInvalid):
        event.decode(raw)


@given(st.binary(max_size=200))
def test_no_bytes_cause_anything_but_a_clear_refusal(raw: bytes) -> None:
    with pytest.raises(EventInvalid):
        event.decode(raw)


words = st.from_regex(r"[A-Za-z0-9_-]{1,10}", fullmatch=True)
types = st.lists(words, min_size=1, max_size=4).map(".".join)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(
    id=st.text(st.characters(codec="utf-8", categories=["L", "N"]), min_size=1, max_size=50),
    type=types,
    data=json_values,
    time=st.none() | st.datetimes(timezones=st.just(UTC)),
    extensions=st.dictionaries(
        st.from_regex(r"x[a-z0-9]{1,10}", fullmatch=True), st.text() | st.booleans() | st.integers(-(2**31), 2**31)
    ),
)
def test_what_is_written_is_what_is_read(
    id: str, type: str, data: object, time: datetime | None, extensions: dict[str, event.Extension]
) -> None:
    written = Event(
        id=id, source="/s", type=type, time=time, data=msgspec.Raw(msgspec.json.encode(data)), extensions=extensions
    )
    read = event.decode(event.encode(written))
    assert msgspec.json.decode(read.data) == data
    assert msgspec.structs.replace(read, data=written.data) == written


def test_a_subject_says_where_an_event_belongs() -> None:
    subject = Subject.build("shop", "acme", "events", "order.created")
    assert str(subject) == "shop.tenants.acme.events.order.created"
    assert Subject.parse(str(subject)) == subject


@pytest.mark.parametrize(
    ("app", "tenant", "channel", "type"),
    [
        ("", "acme", "events", "a"),
        ("shop", "acme.globex", "events", "a"),
        ("shop", "*", "events", "a"),
        ("shop", "acme", "events.x", "a"),
        ("shop", "Acme", "events", "a"),
        ("shop", "-acme", "events", "a"),
        ("shop", "a" * 49, "events", "a"),
        ("shop", "acme", "events", "a.>"),
        ("shop", "acme", "events", ""),
        ("shop", "acme\n", "events", "a"),
    ],
)
def test_no_part_of_a_subject_can_reach_beyond_its_place(app: str, tenant: str, channel: str, type: str) -> None:
    with pytest.raises(SubjectInvalid):
        Subject.build(app, tenant, channel, type)
    with pytest.raises(SubjectInvalid):
        Subject.parse(f"{app}.tenants.{tenant}.{channel}.{type}" if "." not in tenant + channel else "shop.x")


names = st.from_regex(r"[a-z0-9]([a-z0-9-]{0,10}[a-z0-9])?", fullmatch=True)


@given(names, names, names, types)
def test_subjects_read_back_as_they_were_built(app: str, tenant: str, channel: str, type: str) -> None:
    subject = Subject.build(app, tenant, channel, type)
    assert Subject.parse(str(subject)) == subject


def matches(words: list[str], pattern: list[str]) -> bool:
    """As NATS does it, word by word."""
    if not words or not pattern:
        return not words and not pattern
    return pattern == [">"] or (pattern[0] in ("*", words[0]) and matches(words[1:], pattern[1:]))


few_words = st.lists(st.sampled_from(["a", "b", "ab", "a-b", "A_1"]), min_size=1, max_size=4)
patterns = st.tuples(
    st.lists(st.sampled_from(["a", "b", "ab", "a-b", "*"]), max_size=3), st.sampled_from(["a", "b", "*", ">"])
)


@given(few_words, st.lists(patterns, min_size=1, max_size=3))
def test_a_type_matches_one_of_several_patterns_as_in_nats(
    words: list[str], several: list[tuple[list[str], str]]
) -> None:
    wanted = [[*first, last] for first, last in several]
    expression = event.type_expression(".".join(each) for each in wanted)
    assert bool(re.search(expression, ".".join(words))) == any(matches(words, each) for each in wanted)


def test_an_expression_is_for_the_whole_type_and_needs_no_escaping() -> None:
    expression = event.type_expression(["order.*", "cart.>"])
    assert "\\" not in expression
    for type in ("order", "order.a.b", "x.order.a", "orderxa", "cart", "order.a\n", "order.a\nb", "b\norder.a"):
        assert not re.search(expression, type), type
    assert re.search(expression, "order.a")
    assert re.search(expression, "cart.a.b")


@pytest.mark.parametrize("pattern", ["", ".", "order.", ">.order", "order.>.x", "or*er", "a b", "order.*\n", "ü"])
def test_what_is_no_pattern_of_types_is_refused(pattern: str) -> None:
    with pytest.raises(SubjectInvalid, match="expected a type with wildcards"):
        event.require_type_pattern(pattern)
