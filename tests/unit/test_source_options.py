"""The options of the Spark source."""

from __future__ import annotations

import pytest

from pyspark_nats import CatalogInvalid, OptionInvalid, Stream
from pyspark_nats.access import Access
from pyspark_nats.catalog import checked, load_catalog
from pyspark_nats.options import EARLIEST, LATEST, READ_OPTIONS, ReadOptions
from pyspark_nats.subjects import SubjectFilter

GOOD = {"nats.url": "nats://127.0.0.1:4222", "streams": "ORDERS"}


def parse(streaming: bool = False, **more: str) -> ReadOptions:
    return ReadOptions.parse(
        GOOD | {name.replace("__", "."): value for name, value in more.items()}, streaming=streaming
    )


def test_a_wrong_option_is_answered_with_the_right_ones() -> None:
    with pytest.raises(OptionInvalid) as caught:
        parse(startingOffset="earliest")
    assert "there is no option startingOffset (did you mean startingOffsets?);" in str(caught.value)
    for name in READ_OPTIONS:
        assert f"\n  {name} " in str(caught.value)


def test_options_are_the_same_in_any_case() -> None:
    assert parse(MAXOFFSETSPERTRIGGER="10").most_a_trigger == parse(maxoffsetspertrigger="10").most_a_trigger == 10


def test_defaults_are_those_of_the_kafka_source() -> None:
    options = parse()
    assert (options.starting.everywhere, options.ending.everywhere) == (EARLIEST, LATEST)
    assert (options.fail_on_loss, options.include_headers, options.order) == (True, False, True)
    assert (options.most_a_trigger, options.tasks) == (None, None)


def test_offsets_are_words_or_sequences_by_stream() -> None:
    assert parse(startingOffsets="latest").starting.everywhere == LATEST
    moment = parse(startingOffsets='{"ORDERS": 42, "OTHER": -1, ".created": 17}').starting
    assert (moment.everywhere, moment.by_stream) == (EARLIEST, {"ORDERS": 42, "OTHER": LATEST})


def test_times_are_milliseconds_or_iso() -> None:
    assert parse(startingTimestamp="1763199000123").starting.nanoseconds == 1763199000123_000_000
    assert parse(startingTimestamp="2025-11-15T09:30:00.123456Z").starting.nanoseconds == 1763199000_123_456_000
    assert parse(startingTimestamp="2025-11-15T10:30:00+01:00").starting.nanoseconds == 1763199000_000_000_000
    assert parse(startingTimestamp="2025-11-15").starting.nanoseconds == 1763164800_000_000_000


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"streams": ""}, "expected either the option streams"),
        ({"catalog": "a:b"}, "or the option catalog, got both"),
        ({"nats.url": ""}, "expected the option nats.url"),
        ({"nats.url": "http://me:secret@host"}, "nats.url: expected a server address like nats://host:4222"),
        ({"startingOffsets": "first"}, "expected startingOffsets to be latest or earliest, or an object"),
        ({"startingOffsets": '{"ORDERS": "1"}'}, "expected startingOffsets to be latest or earliest, or an object"),
        ({"startingOffsets": '{"ORDERS": -3}'}, "expected startingOffsets to be latest or earliest, or an object"),
        ({"startingOffsets": "[1]"}, "expected startingOffsets to be latest or earliest, or an object"),
        ({"endingOffsets": "earliest"}, "expected endingOffsets to be latest, or an object"),
        ({"startingTimestamp": "1763199000"}, "to be milliseconds since 1970, got: 1763199000; are these seconds?"),
        ({"subscribe": "ORDERS"}, "there is no option subscribe (did you mean streams?)"),
        ({"startingTimestamp": "yesterday"}, "expected startingTimestamp to be milliseconds since 1970 or a time"),
        ({"startingTimestamp": "1", "startingOffsets": "latest"}, "expected one of startingOffsets and"),
        ({"maxOffsetsPerTrigger": "0"}, "expected maxOffsetsPerTrigger to be a positive whole number, got: 0"),
        ({"minPartitions": "many"}, "expected minPartitions to be a positive whole number, got: many"),
        ({"failOnDataLoss": "maybe"}, "expected failOnDataLoss to be true or false, got: maybe"),
        ({"subjects": "shop.>.orders"}, "expected subjects to be like"),
        ({"subjects": "shop..orders"}, "expected subjects to be like"),
        ({"nats.domain": "hub", "nats.apiPrefix": "$JS.hub.API"}, "expected one of nats.domain and nats.apiPrefix"),
        ({"catalog.tenant": "a", "path": "x"}, "there is no option path"),
    ],
)
def test_bad_values_are_told_what_is_expected(options: dict[str, str], complaint: str) -> None:
    with pytest.raises(OptionInvalid) as caught:
        ReadOptions.parse(GOOD | options, streaming=False)
    assert complaint in str(caught.value)


def test_a_streaming_query_has_no_end() -> None:
    with pytest.raises(OptionInvalid, match="endingOffsets is for batch reads"):
        parse(streaming=True, endingOffsets="latest")


def test_a_domain_has_its_own_api() -> None:
    access = parse(nats__domain="hub").access.resolve()
    assert access is not None
    assert access.api_prefix == "$JS.hub.API"


def test_credentials_that_cannot_be_read_name_the_file() -> None:
    options = parse(nats__creds="/nowhere/of.creds")
    with pytest.raises(OptionInvalid, match=r"/nowhere/of\.creds.*nats\.creds is the path"):
        options.access.resolve()


def test_credentials_given_in_place_of_their_path_are_not_shown() -> None:
    given = "-----BEGIN NATS USER JWT-----\nsecret\n------END NATS USER JWT------"
    with pytest.raises(OptionInvalid) as caught:
        parse(nats__creds=given).access.resolve()
    assert "secret" not in str(caught.value)


def test_how_to_reach_a_server_is_not_shown() -> None:
    assert "secret" not in repr(parse(nats__url="nats://me:secret@host"))
    access = Access("nats://me:secret@host", tls_key="secret")
    assert "secret" not in repr(access)
    assert "secret" not in repr(Stream("A", access=access))


@pytest.mark.parametrize(
    ("pattern", "subject", "taken"),
    [
        ("shop.orders.created", "shop.orders.created", True),
        ("shop.orders.created", "shop_orders_created", False),
        ("shop.*.created", "shop.orders.created", True),
        ("shop.*.created", "shop.orders.eu.created", False),
        ("shop.>", "shop.orders.eu.created", True),
        ("shop.>", "shop", False),
        (">", "anything.at.all", True),
    ],
)
def test_subjects_are_matched_as_nats_does(pattern: str, subject: str, taken: bool) -> None:
    assert SubjectFilter(["none", pattern]).takes(subject) is taken


def streams_of(options: dict[str, str]) -> list[Stream]:
    return [Stream(name) for name in options["catalog.names"].split(",")]


class Counting:
    def __init__(self, options: dict[str, str]) -> None:
        self.calls = 0

    def __call__(self) -> list[Stream]:
        self.calls += 1
        return [Stream(f"CALL_{self.calls}")]


class Silent:
    def __init__(self, options: dict[str, str]) -> None:
        pass


def test_a_catalog_is_a_function_of_the_options_or_a_class_that_is_made_once() -> None:
    function = load_catalog(f"{__name__}:streams_of", {"catalog.names": "A,B"})
    assert [stream.name for stream in function()] == ["A", "B"]
    made = load_catalog(f"{__name__}:Counting", {})
    assert [next(iter(made())).name for _ in range(2)] == ["CALL_1", "CALL_2"]


@pytest.mark.parametrize(
    ("path", "complaint"),
    [
        ("just_a_name", "expected catalog to be like package.module:function"),
        ("no.such.module:f", "cannot import the catalog 'no.such.module:f'"),
        (f"{__name__}:nothing", "cannot import the catalog"),
        (f"{__name__}:GOOD", "to be callable, got: dict"),
        (f"{__name__}:Silent", "to make something that can be called"),
    ],
)
def test_a_catalog_that_cannot_be_used_is_named(path: str, complaint: str) -> None:
    with pytest.raises(CatalogInvalid) as caught:
        load_catalog(path, {})
    assert complaint in str(caught.value)


def test_what_a_catalog_gives_is_checked() -> None:
    with pytest.raises(CatalogInvalid, match=r"to give pyspark_nats\.Stream, got: 'A'"):
        checked(["A"], "a:b")  # type: ignore[list-item]
    with pytest.raises(CatalogInvalid, match="got 'A' twice"):
        checked([Stream("A"), Stream("B", key="A")], "a:b")
    for bad in ("", "a.b", "a b", "TENANT_*"):
        with pytest.raises(CatalogInvalid, match="expected the name of a stream"):
            Stream(bad)
    with pytest.raises(CatalogInvalid, match="weight of A to be a number from"):
        Stream("A", weight=0)
    with pytest.raises(CatalogInvalid, match=r"weight of A to be a number from .* got: '4'"):
        Stream("A", weight="4")  # type: ignore[arg-type]
    for most in (0, 1.5, "1"):
        with pytest.raises(CatalogInvalid, match="most of A to be a part"):
            Stream("A", most=most)  # type: ignore[arg-type]
    with pytest.raises(CatalogInvalid, match="to be text, got: 4"):
        Stream(4)  # type: ignore[arg-type]
    with pytest.raises(CatalogInvalid, match="to give streams, got: None"):
        checked(None, "a:b")  # type: ignore[arg-type]
    with pytest.raises(CatalogInvalid, match="does not start with a dot"):
        Stream("A", key=".tasks")
