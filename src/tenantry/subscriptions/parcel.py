"""An event on its way to a handler."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from nats_bulk import parse_headers
from tenantry.nats.feed import Handed

if TYPE_CHECKING:
    from tenantry.subscriptions.dead_letters import Death


class Source(Protocol):
    """Where parcels come from, and are told about."""

    is_replay: bool
    may_retry: bool
    """Whether what fails can come back by itself."""

    @property
    def waiting(self) -> int:
        """How many could be handled now."""

    def next(self) -> Parcel: ...

    def put_first(self, parcels: list[Parcel]) -> None:
        """They come next, as they are."""

    def done(self, parcel: Parcel) -> None:
        """It has been handled."""

    def put_off(self, parcel: Parcel, seconds: float) -> None:
        """It failed, and is to come back then."""

    def return_unhandled(self, parcel: Parcel) -> None:
        """It has not been handled, and whoever comes next may have it."""

    async def bury(self, parcel: Parcel, death: Death) -> None:
        """It is not to come back."""


class Parcel:
    __slots__ = ("attempt", "extended_at", "is_alone", "message", "source")

    def __init__(self, message: Handed, source: Source, now: float) -> None:
        self.message = message
        self.source = source
        self.attempt = message.deliveries
        self.extended_at = now
        """When the broker was last told that we are at it."""
        self.is_alone = False
        """Whether it is to be handled by itself, as a batch failed that it was in."""

    @property
    def sequence(self) -> int:
        return self.message.sequence

    @property
    def subject(self) -> str:
        return self.message.subject.decode(errors="replace")

    @property
    def headers(self) -> dict[str, list[str]]:
        return parse_headers(self.message.header) if self.message.header else {}
