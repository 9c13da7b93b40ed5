"""Messages of lanes as events: parsed and checked by Spark's own functions, whole batches at a time, in the JVM."""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from tenantry.event import LONGEST_ID
from tenantry.pipelines.keys import POOL_PREFIX

EVENT_COLUMNS: Final = (
    "tenant",
    "channel",
    "type",
    "id",
    "source",
    "subject",
    "time",
    "data",
    "trace",
    "lane",
    "sequence",
    "received",
)
"""What a pipeline is given."""

_BROKEN: Final = "_broken"
_ENVELOPE: Final = (
    "specversion string, id string, source string, type string, subject string, time string, "
    f"data variant, data_base64 string, traceparent string, {_BROKEN} string"
)
_HAS_ZONE: Final = r"(?:[Zz]|[+-]\d\d:?\d\d)$"


def read_messages(messages: DataFrame, types: str | None = None, channel: str | None = None) -> DataFrame:
    """Every message as an event, or with a `problem` that says why it is none; then `payload` has it as it was.

    `types` is a regular expression: what has another type, or is of another channel, is left out before anything is
    parsed. `origin` is the key under which it was read. The lane says whose an
    event is; a shared stream, the subject, which only the platform can choose there.
    """
    split = F.split("subject", r"\.", 5)
    words = [F.get(split, F.lit(place)) for place in range(5)]
    is_pool = F.startswith("stream", F.lit(POOL_PREFIX))
    lane = F.split(F.substring_index("stream", "@", 1), "/")
    placed = messages.select(
        F.col("stream").alias("origin"),
        F.when(is_pool, words[2]).otherwise(lane[0]).alias("tenant"),
        F.when(is_pool, words[3]).otherwise(lane[1]).alias("channel"),
        words[4].alias("type"),
        (is_pool | (lane[0].eqNullSafe(words[2]) & lane[1].eqNullSafe(words[3]))).alias("_at_home"),
        F.col("subject").alias("address"),
        "sequence",
        F.col("timestamp").alias("received"),
        F.col("data").alias("_message"),
    )
    if types is not None:
        placed = placed.where(F.col("type").rlike(types))
    if channel is not None:
        placed = placed.where(F.col("channel") == channel)
    text = F.col("_message").cast("string")
    parsed = placed.select(
        "*", text.alias("_text"), F.from_json(text, _ENVELOPE, {"columnNameOfCorruptRecord": _BROKEN}).alias("_event")
    )
    time = F.col("_event.time")
    moment = F.when(time.rlike(_HAS_ZONE), time.try_cast("timestamp"))
    # No Python and few tables know others.
    known_year = F.when(F.year(moment).between(1, 9999), moment)
    checked = parsed.select("*", known_year.alias("time"), F.col("_event.id").alias("id"))
    return checked.select(
        "tenant",
        "channel",
        "type",
        "id",
        "_event.source",
        F.col("_event.subject").alias("subject"),
        "time",
        _data().alias("data"),
        F.col("_event.traceparent").alias("trace"),
        F.concat("tenant", F.lit("/"), "channel").alias("lane"),
        "sequence",
        "received",
        "address",
        "origin",
        F.octet_length("_message").cast("long").alias("bytes"),
        _problem().alias("problem"),
        "_message",
    ).select(
        *EVENT_COLUMNS,
        "origin",
        "address",
        "bytes",
        "problem",
        F.when(F.col("problem").isNotNull(), F.col("_message")).alias("payload"),
    )


def events_of(messages: DataFrame) -> DataFrame:
    """Those that are events, as pipelines are given them."""
    return messages.where(F.col("problem").isNull()).select(*EVENT_COLUMNS)


def _data() -> Column:
    """What is not JSON stays in base64, as text."""
    quoted = F.concat(F.lit('"'), F.col("_event.data_base64"), F.lit('"'))
    return F.coalesce(F.col("_event.data"), F.try_parse_json(quoted))


def _problem() -> Column:
    """The first thing that is wrong, in the words of `tenantry.event`, which checks what comes in over HTTP."""
    event = F.col("_event")
    text = F.trim("_text")
    wrong = [
        (~F.col("_at_home"), F.concat(F.lit("expected a subject of its own lane, got: "), _shown("address"))),
        (~F.is_valid_utf8("_text"), F.lit("expected UTF-8")),
        (~(F.startswith(text, F.lit("{")) & F.endswith(text, F.lit("}"))), F.lit("expected a JSON object")),
        # Spark does not say which.
        (event[_BROKEN].isNotNull(), F.lit("expected JSON, with no key twice in an object and not nested too deeply")),
        (
            ~event.specversion.eqNullSafe("1.0"),
            F.concat(F.lit('expected specversion to be "1.0", got: '), _shown(event.specversion)),
        ),
        (
            ~F.coalesce(F.length("id").between(1, LONGEST_ID), F.lit(False)),
            F.concat(F.lit(f"expected id to be 1 to {LONGEST_ID} characters, got: "), _shown("id")),
        ),
        (F.coalesce(event.source, F.lit("")) == "", F.lit("expected source not to be empty")),
        (
            ~event.type.eqNullSafe(F.col("type")),
            F.concat(F.lit("expected the type to be that of its subject, got: "), _shown(event.type)),
        ),
        (
            event.time.isNotNull() & F.col("time").isNull(),
            F.concat(F.lit("expected time to be a date and time with a time zone, got: "), _shown(event.time)),
        ),
        (event.data.isNotNull() & event.data_base64.isNotNull(), F.lit("expected data or data_base64, got both")),
    ]
    (condition, words), *others = wrong
    problem = F.when(condition, words)
    for condition, words in others:
        problem = problem.when(condition, words)
    return problem


def _shown(value: Column | str) -> Column:
    return F.coalesce(F.left(value, F.lit(80)), F.lit("nothing"))
