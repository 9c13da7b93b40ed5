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
from tenantry.event import Attributes, Extension
from tenantry.ingest.tracing import PARENT, STATE, Trace, start_trace, trace_of_event
from tenantry.tenants.boundary import CLAIMS, TENANT_EXTENSION, override_claims
from tenantry.tenants.lanes import Lane

_SET_HERE: Final = (*CLAIMS, PARENT, STATE)
_decode_batch = msgspec.json.Decoder(list[msgspec.Raw]).decode
_encode = msgspec.json.Encoder().encode


class Message(NamedTuple):
    """An event, ready to be stored."""

    id: str
    type: str
    subject: str
    header: bytes
    document: bytes
    size: int
    """Bytes on the wire: headers count against the limit of a tenant, too."""
    trace: Trace


class Reader:
    """Reads the events of one request, all for one lane. Those that name no trace are in the request's."""

    def __init__(self, lane: Lane, largest: int, trace: Trace | None) -> None:
        self.lane = lane
        self._largest = largest
        self._usual = _Marks(lane, trace or start_trace())
        self._time = b""

    def read(self, document: bytes) -> tuple[Attributes, Message]:
        """Raises EventInvalid or EventTooLarge."""
        event, members, extensions = _decode(document)
        # As it was sent, unless something has to go: most documents need not be written again.
        kept = _encode(members)
        if kept != document:
            _require_each_once(document)
        marks = self._usual
        if extensions:
            override_claims(self.lane.tenant, extensions)
            if own := trace_of_event(extensions):
                marks = _Marks(self.lane, own)
        added = marks.members
        gone: list[str] = [name for name in _SET_HERE if name in members] if extensions else []
        if event.time is None:
            added += self._present_time()
            if "time" in members:
                gone.append("time")
        if gone:
            kept = _encode({name: value for name, value in members.items() if name not in gone})
        encoded = b"%b%b}" % (kept[:-1], added)
        header = f"NATS/1.0\r\nNats-Msg-Id: {self.lane.message_id(event.id)}\r\n{marks.headers}\r\n".encode()
        size = len(header) + len(encoded)
        if size > self._largest:
            raise EventTooLarge(
                f"expected an event of at most {self._largest:,} bytes with its headers, got: {size:,}; send a "
                "reference to the data instead of the data, or have `payload` of the tenant's plan raised"
            )
        subject = f"{self.lane.prefix}.{event.type}"
        return event, Message(event.id, event.type, subject, header, encoded, size, marks.trace)

    def _present_time(self) -> bytes:
        if not self._time:
            self._time = b',"time":"%b"' % _timestamp(cloudevents.now()).encode()
        return self._time


class _Marks:
    """What is put on an event: whose it is, and which trace it belongs to."""

    def __init__(self, lane: Lane, trace: Trace) -> None:
        self.trace = trace
        # None of these needs escaping, but for the state of a trace.
        members = f',"{TENANT_EXTENSION}":"{lane.tenant}","{PARENT}":"{trace.parent}"'
        self.headers = f"{PARENT}: {trace.parent}\r\n"
        if trace.state:
            members += f',"{STATE}":{_encode(trace.state).decode()}'
            self.headers += f"{STATE}: {trace.state}\r\n"
        self.members = members.encode()


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


def _decode(document: bytes) -> tuple[Attributes, dict[str, msgspec.Raw], dict[str, Extension]]:
    try:
        event, members = cloudevents.decode_attributes(document)
        extensions = cloudevents.read_extensions(members)
    except RecursionError:
        raise EventInvalid("", "expected JSON that is not nested so deeply") from None
    if event.id.isspace():
        raise EventInvalid("id", "expected id not to be blank")
    if event.data_base64 is not None:
        _require_base64(event.data_base64)
    return event, members, extensions


def _require_each_once(document: bytes) -> None:
    """Readers differ in which of two members with one name they take.

    A document that was written compactly equals what is left of it without such members, and need not come here.
    """
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
