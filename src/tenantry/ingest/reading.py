"""Makes a message of an event: checked, named as its tenant's, with a time and a trace, and encoded once.

What the event's author wrote stays as it is, `data` above all; a few members are put behind it.
"""

from __future__ import annotations

import binascii
import json
from datetime import datetime
from typing import Any, Final, NamedTuple

import msgspec

from tenantry import event as cloudevents
from tenantry.errors import EventInvalid, EventTooLarge
from tenantry.event import Event
from tenantry.ingest.tracing import PARENT, STATE, Trace, start_trace, trace_of_event
from tenantry.tenants.boundary import CLAIMS, TENANT_EXTENSION, override_claims

# What a message has around document, id, tenant and trace: the names of its headers, and what separates them.
HEADER_BYTES: Final = len("NATS/1.0\r\nNats-Msg-Id: /\r\ntraceparent: \r\n\r\n")
STATE_BYTES: Final = len("tracestate: \r\n")

_SET_HERE: Final = (*CLAIMS, PARENT, STATE)
_decode_members = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_decode_batch = msgspec.json.Decoder(list[msgspec.Raw]).decode
_encode = msgspec.json.Encoder().encode


class Message(NamedTuple):
    """An event, ready to be stored."""

    id: str
    type: str
    document: bytes
    trace: Trace
    size: int
    """Bytes on the wire: document and headers, which both count against the limit of a tenant."""


class Reader:
    """Reads the events of one request, for one tenant."""

    def __init__(self, tenant: str, largest: int, trace: Trace | None) -> None:
        self.tenant = tenant
        self._largest = largest
        self._trace = trace
        self._now = ""

    def read(self, document: bytes) -> tuple[Event, Message]:
        """Raises EventInvalid or EventTooLarge."""
        event, members = _decode(document)
        trace = trace_of_event(event.extensions) or self._trace or start_trace()
        override_claims(self.tenant, event.extensions)
        added = {TENANT_EXTENSION: self.tenant, PARENT: trace.parent}
        if trace.state:
            added[STATE] = trace.state
        if event.time is None:
            added["time"] = self._now = self._now or _timestamp(cloudevents.now())
        for name in (*_SET_HERE, *added):
            members.pop(name, None)
        encoded = _encode(members)[:-1] + b"," + _encode(added)[1:]
        size = len(encoded) + len(event.id.encode()) + len(self.tenant) + len(trace.parent) + HEADER_BYTES
        if trace.state:
            size += len(trace.state) + STATE_BYTES
        if size > self._largest:
            raise EventTooLarge(
                f"expected an event of at most {self._largest:,} bytes with its headers, got: {size:,}; send a "
                "reference to the data instead of the data, or have `payload` of the tenant's plan raised"
            )
        return event, Message(event.id, event.type, encoded, trace, size)


def read_batch(body: bytes) -> list[bytes]:
    """The documents of a batch."""
    try:
        return [bytes(each) for each in _decode_batch(body)]
    except RecursionError:
        raise EventInvalid("", "expected JSON that is not nested so deeply") from None
    except msgspec.ValidationError:
        raise EventInvalid("", "expected a batch to be a JSON array of events") from None
    except msgspec.DecodeError as problem:
        raise EventInvalid("", f"expected JSON, got: {problem}") from None


def _decode(document: bytes) -> tuple[Event, dict[str, msgspec.Raw]]:
    try:
        event = cloudevents.decode(document)
        members = _decode_members(document)
    except RecursionError:
        raise EventInvalid("", "expected JSON that is not nested so deeply") from None
    if event.id.isspace():
        raise EventInvalid("id", "expected id not to be blank")
    if event.data_base64 is not None:
        _require_base64(event.data_base64)
    # Readers differ in which of two members with one name they take. Most documents are written compactly, and then
    # equal what is left of them without such members.
    if _encode(members) != document:
        _require_each_once(document)
    return event, members


def _require_each_once(document: bytes) -> None:
    repeated = ""

    def note(pairs: list[tuple[str, Any]]) -> None:
        nonlocal repeated
        names = [name for name, _ in pairs]
        # The outermost object is the last to be complete.
        repeated = next((name for name in names if names.count(name) > 1), "") if len(set(names)) < len(names) else ""

    try:
        json.loads(document, object_pairs_hook=note)
    except RecursionError:
        raise EventInvalid("", "expected JSON that is not nested so deeply") from None
    except ValueError as problem:
        raise EventInvalid("", f"expected JSON, got: {problem}") from None
    if repeated:
        raise EventInvalid(repeated, f"expected each member once, got several: {repeated[:40]!r}")


def _require_base64(text: str) -> None:
    try:
        binascii.a2b_base64(text, strict_mode=True)
    except ValueError:
        raise EventInvalid("data_base64", "expected data_base64 to be base64") from None


def _timestamp(moment: datetime) -> str:
    return moment.isoformat(timespec="microseconds").replace("+00:00", "Z")
