"""A dead letter as people and programs find it, and the filter that names some of them."""

from __future__ import annotations

import base64
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from uuid import UUID

import msgspec

from tenantry.errors import TenantInvalid
from tenantry.subscriptions.dead_letters import State

PIPELINES: Final = "pipelines"
"""In place of a service, all pipelines together."""

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)


class DeadLetterFilter(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What is None is not asked for."""

    owner: str | None = None
    """Only what belongs to this tenant, for somebody who may see nothing else."""
    tenant: str | None = None
    service: str | None = None
    type: str | None = None
    state: State | None = None
    key: str | None = None
    event: str | None = None
    """The id of the event."""
    reason: str | None = None
    """Part of the reason, in whatever case."""
    since: datetime | None = None
    until: datetime | None = None
    """Only what died before."""
    ids: tuple[UUID, ...] | None = None

    def parameters(self) -> dict[str, Any]:
        return msgspec.structs.asdict(self) | {"ids": None if self.ids is None else list(self.ids)}

    def describe(self) -> dict[str, Any]:
        """What it asks for, as it is put on record."""
        described: dict[str, Any] = msgspec.to_builtins(self)
        return described


class FoundLetter(msgspec.Struct, frozen=True, kw_only=True):
    id: UUID
    tenant_id: str
    channel: str
    service: str
    sequence: int
    part: int
    state: State
    subject: str
    event_id: str | None
    type: str | None
    key: str | None
    reason: str
    deliveries: int
    published_at: datetime
    died_at: datetime
    job: UUID | None
    """The redrive that is at it."""


class WholeLetter(FoundLetter, frozen=True, kw_only=True):
    payload: bytes
    headers: dict[str, list[str]]
    trace: str | None
    traceback: str

    def describe(self) -> dict[str, Any]:
        """With the payload as JSON if it is JSON, else as it is, in base64."""
        described: dict[str, Any] = msgspec.to_builtins(self)
        described |= {"payload": None, "payload_base64": None}
        try:
            described["payload"] = msgspec.json.decode(self.payload)
        except (msgspec.DecodeError, UnicodeDecodeError):
            described["payload_base64"] = base64.b64encode(self.payload).decode()
        return described


class Place(msgspec.Struct, frozen=True):
    """Where the next page begins, also if all dead letters of the one before are gone by then."""

    died_at: datetime
    id: UUID

    def __str__(self) -> str:
        return f"{(self.died_at - _EPOCH) // _MICROSECOND}-{self.id}"

    @classmethod
    def read(cls, text: str) -> Place:
        moment, _, id = text.partition("-")
        try:
            return cls(_EPOCH + int(moment) * _MICROSECOND, UUID(id))
        except (ValueError, OverflowError):
            raise TenantInvalid("after", f"expected after to be the `next` of a page, got: {text[:80]!r}") from None
