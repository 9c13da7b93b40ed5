"""The options of the source and the sink, named as in Spark's Kafka source where that has one."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from difflib import get_close_matches
from typing import Final

from nats_bulk import parse_addresses
from pyspark_nats.access import DEFAULT_API, Access, read_credentials
from pyspark_nats.errors import OptionInvalid
from pyspark_nats.subjects import checked_subjects

EARLIEST: Final = -2
LATEST: Final = -1

ACCESS_OPTIONS: Final = {
    "nats.url": "one or more servers, separated by commas: nats://host:4222, tls://host:4222",
    "nats.creds": "path of a .creds file on the driver; read anew for each batch",
    "nats.tls.ca": "path of the certificates to trust, on the driver and every executor",
    "nats.tls.cert": "path of the client's certificate, on the driver and every executor",
    "nats.tls.key": "path of the client's key, on the driver and every executor",
    "nats.tls.first": "true for servers that expect TLS before anything else; false by default",
    "nats.domain": "the JetStream domain of the streams",
    "nats.apiPrefix": "where JetStream's API is, for accounts that import it; $JS.API by default",
    "nats.inboxPrefix": "the prefix of inboxes, for users that may use no other; _INBOX by default",
}
READ_OPTIONS: Final = ACCESS_OPTIONS | {
    "streams": "names, or patterns in which * is any text, separated by commas: ORDERS, TENANT_*",
    "subjects": "only messages with one of these subjects, separated by commas: shop.orders.>, *.paid; the others are "
    "read and left out",
    "startingOffsets": 'where a new query starts: earliest (default), latest, or {"ORDERS": 42} with -2 for earliest '
    "and -1 for latest; a batch read starts at earliest",
    "endingOffsets": 'where a batch read ends: latest (default), or {"ORDERS": 99}, which is not read any more',
    "startingTimestamp": "start at the first message stored at this time or later: milliseconds since 1970, or ISO "
    "8601, in UTC unless it says otherwise",
    "endingTimestamp": "end a batch read before the first message stored at this time or later",
    "maxOffsetsPerTrigger": "at most so many sequences in a micro-batch, divided fairly; all there are by default",
    "maxBytesPerTrigger": "at most so many bytes in a micro-batch, by the average size of each stream's messages, "
    "divided fairly; at least one message of each stream that has its turn",
    "minPartitions": "how many tasks a batch is divided into, if it has as many streams; the cores of the driver by "
    "default, and fewer for little data",
    "failOnDataLoss": "true (default) fails when messages still to be read are gone; false goes on and warns",
    "includeHeaders": "true adds the column headers; false by default",
    "order": "true (default) keeps a stream in one task, in its order; false may divide it",
    "catalog": "package.module:name of a callable that supplies the streams, instead of the option streams",
    "drainUnlisted": "true (default) reads what a stream had when the catalog listed it last; false leaves it at once, "
    "also out of a batch that is repeated",
}
WRITE_OPTIONS: Final = ACCESS_OPTIONS | {
    "subject": "where to publish, with columns in braces: orders.{region}.created; without it, the column subject",
    "writeId": "what message ids start with, instead of the query's id or, for a batch write, a new one: a batch write "
    "that is run again with the same one, and the same partitions, adds only what is missing",
}
# Spark hands these to every sink, and whatever begins with `catalog.` is for the catalog.
_SPARK_OPTIONS: Final = ("checkpointlocation", "queryname")
_CATALOG_PREFIX: Final = "catalog."
# What the same thing is called elsewhere.
_OTHERS_WORDS: Final = ("path", "subscribe", "subscribepattern", "topic", "stream")
# Whoever gives seconds in place of milliseconds means a time after this one, which is in 1973.
_EARLIEST_MILLISECONDS: Final = 100_000_000_000


@dataclass(frozen=True, slots=True)
class Moment:
    """Where to start or end: per stream with a default for the others, or by time."""

    everywhere: int
    by_stream: Mapping[str, int]
    nanoseconds: int | None = None


@dataclass(frozen=True, slots=True)
class ReadOptions:
    access: AccessOptions
    streams: tuple[str, ...]
    subjects: tuple[str, ...]
    starting: Moment
    ending: Moment
    most_a_trigger: int | None
    most_bytes_a_trigger: int | None
    tasks: int | None
    fail_on_loss: bool
    include_headers: bool
    order: bool
    catalog: str
    drain_unlisted: bool
    given: Mapping[str, str] = field(repr=False)
    """As Spark has them, with the names in any case; for the catalog."""

    @classmethod
    def parse(cls, options: Mapping[str, str], *, streaming: bool) -> ReadOptions:
        given = _Given(options, READ_OPTIONS)
        if streaming and (late := [name for name in ("endingOffsets", "endingTimestamp") if given.text(name)]):
            raise OptionInvalid(f"{late[0]} is for batch reads: a streaming query has no end")
        if bool(given.text("streams")) == bool(given.text("catalog")):
            raise OptionInvalid(
                "expected either the option streams, such as ORDERS or TENANT_*, or the option catalog, got "
                + ("both" if given.text("streams") else "neither")
            )
        return cls(
            access=AccessOptions.parse(given, required=not given.text("catalog")),
            streams=given.names("streams"),
            subjects=checked_subjects(given.names("subjects")),
            starting=given.moment("startingOffsets", "startingTimestamp", EARLIEST),
            ending=given.moment("endingOffsets", "endingTimestamp", LATEST),
            most_a_trigger=given.count("maxOffsetsPerTrigger"),
            most_bytes_a_trigger=given.count("maxBytesPerTrigger"),
            tasks=given.count("minPartitions"),
            fail_on_loss=given.flag("failOnDataLoss", default=True),
            include_headers=given.flag("includeHeaders", default=False),
            order=given.flag("order", default=True),
            catalog=given.text("catalog"),
            drain_unlisted=given.flag("drainUnlisted", default=True),
            given=options,
        )


@dataclass(frozen=True, slots=True)
class WriteOptions:
    access: AccessOptions
    subject: str
    write_id: str

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> WriteOptions:
        given = _Given(options, WRITE_OPTIONS)
        if not given.text("writeId").isprintable():
            raise OptionInvalid(f"expected writeId to be of printable characters, got: {given.text('writeId')!r}")
        return cls(
            access=AccessOptions.parse(given, required=True),
            subject=given.text("subject"),
            write_id=given.text("writeId"),
        )


@dataclass(frozen=True, slots=True)
class AccessOptions:
    """Holds the path of the credentials and not what is in it, so it may be kept in a plan."""

    template: Access | None
    creds: str

    @classmethod
    def parse(cls, given: _Given, *, required: bool) -> AccessOptions:
        url, domain, api = given.text("nats.url"), given.text("nats.domain"), given.text("nats.apiPrefix")
        if not url:
            if required:
                raise OptionInvalid("expected the option nats.url, such as nats://127.0.0.1:4222")
            return cls(None, "")
        try:
            parse_addresses(url)
        except ValueError as problem:
            raise OptionInvalid(f"nats.url: {problem}") from None
        if domain and api:
            raise OptionInvalid("expected one of nats.domain and nats.apiPrefix, got both")
        template = Access(
            url,
            tls_ca=given.text("nats.tls.ca"),
            tls_cert=given.text("nats.tls.cert"),
            tls_key=given.text("nats.tls.key"),
            tls_first=given.flag("nats.tls.first", default=False),
            api_prefix=f"$JS.{domain}.API" if domain else api or DEFAULT_API,
            inbox_prefix=given.text("nats.inboxPrefix") or "_INBOX",
        )
        return cls(template, given.text("nats.creds"))

    def resolve(self) -> Access | None:
        """With the credentials as they are now."""
        if self.template is None or not self.creds:
            return self.template
        return replace(self.template, credentials=read_credentials(self.creds))


class _Given:
    """What a user wrote, with the names in any case, as Spark has it."""

    def __init__(self, options: Mapping[str, str], known: Mapping[str, str]) -> None:
        self._options = {name.lower(): value.strip() for name, value in options.items()}
        names = {name.lower() for name in known}
        wrong = [
            name
            for name in options
            if name.lower() not in names
            and name.lower() not in _SPARK_OPTIONS
            and not (name.lower().startswith(_CATALOG_PREFIX) and "catalog" in names)
        ]
        if wrong:
            hints = "".join(filter(None, (_hint(name, known) for name in sorted(wrong))))
            raise OptionInvalid(
                f"there is no option {', '.join(sorted(wrong))}{hints}; the options are:\n{_table(known.items())}"
            )

    def text(self, name: str) -> str:
        return self._options.get(name.lower(), "")

    def names(self, name: str) -> tuple[str, ...]:
        return tuple(part.strip() for part in self.text(name).split(",") if part.strip())

    def flag(self, name: str, *, default: bool) -> bool:
        value = self.text(name).lower()
        if value not in ("", "true", "false"):
            raise OptionInvalid(f"expected {name} to be true or false, got: {value}")
        return value == "true" if value else default

    def count(self, name: str) -> int | None:
        value = self.text(name)
        if not value:
            return None
        if not (value.isascii() and value.isdigit() and int(value) > 0):
            raise OptionInvalid(f"expected {name} to be a positive whole number, got: {value}")
        return int(value)

    def moment(self, offsets: str, timestamp: str, default: int) -> Moment:
        if self.text(offsets) and self.text(timestamp):
            raise OptionInvalid(f"expected one of {offsets} and {timestamp}, got both")
        if at := self.text(timestamp):
            return Moment(LATEST, {}, _nanoseconds(timestamp, at))
        value = self.text(offsets)
        words = {"": default, "latest": LATEST} | ({"earliest": EARLIEST} if default == EARLIEST else {})
        if value.lower() in words:
            return Moment(words[value.lower()], {})
        return Moment(default, _sequences(offsets, value, " or ".join(filter(None, words))))


def _hint(name: str, known: Mapping[str, str]) -> str:
    ours = "streams" if "streams" in known else "subject"
    spelt = dict.fromkeys(_OTHERS_WORDS, ours) | {right.lower(): right for right in known}
    close = get_close_matches(name.lower(), spelt, n=1)
    return f" (did you mean {spelt[close[0]]}?)" if close else ""


def _sequences(name: str, value: str, words: str) -> dict[str, int]:
    try:
        document = json.loads(value)
        # What a query's progress shows can be used as it is; the keys with a dot are its own affair.
        sequences = {key: sequence for key, sequence in document.items() if not key.startswith(".")}
        if all(type(sequence) is int and sequence >= EARLIEST for sequence in sequences.values()):
            return sequences
    except (ValueError, AttributeError):
        pass
    raise OptionInvalid(
        f'expected {name} to be {words}, or an object such as {{"ORDERS": 42}} with -2 for earliest and -1 for '
        f"latest, got: {value:.80}"
    )


def _nanoseconds(name: str, value: str) -> int:
    if value.isascii() and value.isdigit():
        if int(value) < _EARLIEST_MILLISECONDS:
            raise OptionInvalid(f"expected {name} to be milliseconds since 1970, got: {value}; are these seconds?")
        return int(value) * 1_000_000
    try:
        moment = datetime.fromisoformat(value)
    except ValueError:
        raise OptionInvalid(
            f"expected {name} to be milliseconds since 1970 or a time such as 2026-11-15T09:30:00Z, got: {value:.80}"
        ) from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return (moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1) * 1000


def _table(rows: Iterable[tuple[str, str]]) -> str:
    return "\n".join(f"  {name:<21} {meaning}" for name, meaning in rows)
