"""Makes a message of an event: checked, named as its tenant's, with a time and a trace, and encoded once.

What the event's author wrote stays as it is, `data` above all; a few members are put behind it.
"""

from __future__ import annotations

import binascii
import json
from typing import Any, Final, NamedTuple

import msgspec

from tenantry import event as cloudevents
from tenantry.errors import EventInvalid, EventTooLarge
from tenantry.event import Event
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
    trace: Trace

    @property
    def size(self) -> int:
        """Bytes on the wire: headers count against the limit of a tenant, too."""
        return len(self.header) + len(self.document)


class Reader:
    """Reads the events of one request, all for one lane."""

    def __init__(self, lane: Lane, largest: int, trace: Trace | None) -> None:
        self.lane = lane
        self._largest = largest
        self._trace = trace
        self._now = ""

    def read(self, document: bytes) -> tuple[Event, Message]:
        """Raises EventInvalid or EventTooLarge."""
        event, members = _decode(document)
        trace = trace_of_event(event.extensions) or self._trace or start_trace()
        if event.extensions:
            override_claims(self.lane.tenant, event.extensions)
            for name in _SET_HERE:
                members.pop(name, None)
        # None of these needs escaping, but for the state of a trace.
        added = f'"{TENANT_EXTENSION}":"{self.lane.tenant}","{PARENT}":"{trace.parent}"'
        header = f"NATS/1.0\r\nNats-Msg-Id: {self.lane.message_id(event.id)}\r\n{PARENT}: {trace.parent}\r\n"
        if trace.state:
            added += f',"{STATE}":{_encode(trace.state).decode()}'
            header += f"{STATE}: {trace.state}\r\n"
        if event.time is None:
            members.pop("time", None)
            added += f',"time":"{self._time()}"'
        encoded = b"%b,%b}" % (_encode(members)[:-1], added.encode())
        message = Message(
            event.id, event.type, f"{self.lane.prefix}.{event.type}", f"{header}\r\n".encode(), encoded, trace
        )
        if message.size > self._largest:
            raise EventTooLarge(
                f"expected an event of at most {self._largest:,} bytes with its headers, got: {message.size:,}; send a "
                "reference to the data instead of the data, or have `payload` of the tenant's plan raised"
            )
        return event, message

    def _time(self) -> str:
        self._now = self._now or cloudevents.now().isoformat(timespec="microseconds").replace("+00:00", "Z")
        return self._now


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
        event, members = cloudevents.decode_members(document)
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
