"""Events are CloudEvents 1.0, and their way is written in the subject they are published to.

https://github.com/cloudevents/spec/blob/v1.0.2/cloudevents/spec.md
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from typing import Final, NamedTuple

import msgspec

from tenantry.errors import EventInvalid, SubjectInvalid

CONTENT_TYPE: Final = "application/cloudevents+json"

APP_PATTERN: Final = r"[a-z0-9](?:[a-z0-9_-]{0,30}[a-z0-9])?"
TENANT_PATTERN: Final = r"[a-z0-9](?:[a-z0-9-]{0,46}[a-z0-9])?"
CHANNEL_PATTERN: Final = r"[a-z0-9](?:[a-z0-9-]{0,30}[a-z0-9])?"
TYPE_PATTERN: Final = r"[A-Za-z0-9_-]+(?:\.[A-Za-z0-9_-]+)*"
LONGEST_TYPE: Final = 200
LONGEST_ID: Final = 256

EVERY_TYPE: Final = ">"
"""The pattern that all types match."""

_TYPE = re.compile(TYPE_PATTERN)
_TYPE_WITH_WILDCARDS = re.compile(r"(?:(?:\*|[A-Za-z0-9_-]+)\.)*(?:\*|>|[A-Za-z0-9_-]+)")
_WILDCARDS = {"*": "[A-Za-z0-9_-]+", ">": "[A-Za-z0-9_.-]+"}
_EXTENSION_NAME = re.compile(r"[a-z0-9]{1,20}")
_SUBJECT = re.compile(
    rf"(?P<app>{APP_PATTERN})\.tenants\.(?P<tenant>{TENANT_PATTERN})"
    rf"\.(?P<channel>{CHANNEL_PATTERN})\.(?P<type>{TYPE_PATTERN})"
)
_PARTS = {
    "app": re.compile(APP_PATTERN),
    "tenant": re.compile(TENANT_PATTERN),
    "channel": re.compile(CHANNEL_PATTERN),
    "type": _TYPE,
}

Extension = str | int | bool


class Attributes(msgspec.Struct, frozen=True, kw_only=True):
    """The attributes as the wire has them; everything else in the object is an extension."""

    specversion: str
    id: str
    source: str
    type: str
    subject: str | None = None
    time: datetime | None = None
    datacontenttype: str | None = None
    dataschema: str | None = None
    data: msgspec.Raw = msgspec.Raw(b"")
    data_base64: str | None = None


class Event(Attributes, frozen=True, kw_only=True):
    """A CloudEvents 1.0 envelope. `data` stays the JSON it came as; nothing here needs to look inside."""

    specversion: str = "1.0"
    extensions: dict[str, Extension] = {}


_ATTRIBUTES: Final = frozenset(Attributes.__struct_fields__)
_decode_known = msgspec.json.Decoder(Attributes).decode
_decode_object = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_decode_extension = msgspec.json.Decoder(Extension).decode
_encode = msgspec.json.Encoder().encode
_FIELD_IN_MESSAGE = re.compile(r"`\$\.(\w+)|required field `(\w+)`")


def decode(document: bytes) -> Event:
    """Read a structured-mode JSON event; EventInvalid names the first field that is wrong."""
    attributes, members = decode_attributes(document)
    known = {name: getattr(attributes, name) for name in Attributes.__struct_fields__}
    return Event(**known, extensions=read_extensions(members))


def decode_attributes(document: bytes) -> tuple[Attributes, dict[str, msgspec.Raw]]:
    """The attributes of an event, checked, and every member of the object as it was written."""
    try:
        attributes = _decode_known(document)
        members = _decode_object(document)
    except msgspec.ValidationError as problem:
        named = _FIELD_IN_MESSAGE.search(str(problem))
        field = (named[1] or named[2]) if named else ""
        raise EventInvalid(field, str(problem)) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as problem:
        raise EventInvalid("", f"expected JSON, got: {problem}") from None
    _validate_attributes(attributes)
    return attributes, members


def read_extensions(members: dict[str, msgspec.Raw]) -> dict[str, Extension]:
    """The members that are no attributes, checked."""
    if members.keys() <= _ATTRIBUTES:
        return {}
    extensions = {name: _extension(name, raw) for name, raw in members.items() if name not in _ATTRIBUTES}
    _validate_names(extensions)
    return extensions


def encode(event: Event) -> bytes:
    """Write the event in structured mode."""
    document: dict[str, object] = {"specversion": event.specversion}
    for name in Attributes.__struct_fields__[1:]:
        value = getattr(event, name)
        if value is not None and value != msgspec.Raw(b""):
            document[name] = value
    return _encode(document | event.extensions)


def validate(event: Event) -> None:
    """Check what the types alone do not say."""
    _validate_attributes(event)
    _validate_names(event.extensions)


def _validate_attributes(event: Attributes) -> None:
    if event.specversion != "1.0":
        raise EventInvalid("specversion", f'expected specversion to be "1.0", got: "{event.specversion}"')
    if not 0 < len(event.id) <= LONGEST_ID or not event.id.isprintable():
        raise EventInvalid("id", f"expected id to be 1 to {LONGEST_ID} printable characters, got: {event.id[:80]!r}")
    if not event.source:
        raise EventInvalid("source", "expected source not to be empty")
    if len(event.type) > LONGEST_TYPE or not _TYPE.fullmatch(event.type):
        raise EventInvalid(
            "type",
            "expected type to be words of letters, digits, - and _ joined by dots, like order.created, "
            f"at most {LONGEST_TYPE} characters, got: {event.type[:80]!r}",
        )
    if event.time is not None and event.time.tzinfo is None:
        raise EventInvalid("time", f"expected time to have a time zone, got: {event.time.isoformat()}")
    if event.data_base64 is not None and bytes(event.data):
        raise EventInvalid("data_base64", "expected data or data_base64, got both")


def _validate_names(extensions: Iterable[str]) -> None:
    for name in extensions:
        if not _EXTENSION_NAME.fullmatch(name):
            raise EventInvalid(
                name, f"expected extension names of 1 to 20 lower-case letters and digits, got: {name!r}"
            )


def _extension(name: str, raw: msgspec.Raw) -> Extension:
    try:
        value: Extension = _decode_extension(raw)
    except msgspec.ValidationError:
        raise EventInvalid(name, f"expected extension {name} to be a string, a whole number or a boolean") from None
    return value


def now() -> datetime:
    return datetime.now(UTC)


class Subject(NamedTuple):
    """`{namespace}.tenants.{tenant}.{channel}.{type}`: where an event is published. The tenant never stands first."""

    app: str
    tenant: str
    channel: str
    type: str

    def __str__(self) -> str:
        return f"{self.app}.tenants.{self.tenant}.{self.channel}.{self.type}"

    @classmethod
    def build(cls, app: str, tenant: str, channel: str, type: str) -> Subject:
        """Check each part, so that no part can reach beyond its place."""
        subject = cls(app, tenant, channel, type)
        for name, value in subject._asdict().items():
            require_name(name, value)
        return subject

    @classmethod
    def parse(cls, text: str) -> Subject:
        match = _SUBJECT.fullmatch(text)
        if match is None:
            raise SubjectInvalid(f"expected a subject like app.tenants.acme.events.order.created, got: {text[:120]!r}")
        return cls(**match.groupdict())


def is_name(kind: str, value: str) -> bool:
    return _PARTS[kind].fullmatch(value) is not None


def require_name(kind: str, value: str) -> None:
    """Raise unless `value` is a valid app, tenant, channel or type."""
    if not is_name(kind, value):
        raise SubjectInvalid(f"expected {kind} to match {_PARTS[kind].pattern}, got: {value[:80]!r}")


def require_type_pattern(pattern: str) -> str:
    """Raise unless it is a type in which `*` may stand for one word and `>` at the end for all that follow."""
    if not _TYPE_WITH_WILDCARDS.fullmatch(pattern):
        raise SubjectInvalid(
            "expected a type with wildcards to be words, * or, at the end, >, joined by dots, like order.*, "
            f"got: {pattern[:80]!r}"
        )
    return pattern


def type_expression(patterns: Iterable[str]) -> str:
    """One regular expression, for Python and for Java, of the types that match any of the patterns."""
    words = (require_type_pattern(pattern).split(".") for pattern in patterns)
    choices = "|".join("[.]".join(_WILDCARDS.get(word, word) for word in each) for each in words)
    # $ would let a line end follow, and what does not is written \Z in Python and \z in Java.
    return f"^(?:{choices})(?![^.]|[.])"


def type_matcher(patterns: Iterable[str]) -> Callable[[str], object]:
    """Tells of a type whether it matches any of the patterns."""
    wanted = tuple(patterns)
    if EVERY_TYPE in wanted:
        return bool
    return re.compile(type_expression(wanted)).match
