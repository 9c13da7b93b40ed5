"""What a handler is told besides the event."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from tenantry.application.event import Event

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)

Remember = Callable[[Any, "Context", str], Any]


class Context:
    """Of one event, or of a batch of them."""

    __slots__ = (
        "_event_id",
        "_remember",
        "_stored_at",
        "attempt",
        "channel",
        "fence",
        "is_replay",
        "part",
        "payload",
        "sequence",
        "service",
        "subject",
        "tenant",
        "worker",
    )

    def __init__(
        self,
        *,
        service: str,
        tenant: str,
        channel: str,
        subject: str,
        sequence: int,
        attempt: int,
        stored_at: int,
        worker: str = "",
        part: int = 0,
        fence: int = 0,
        is_replay: bool = False,
        event_id: str = "",
        payload: bytes = b"",
        remember: Remember | None = None,
    ) -> None:
        self.service = service
        """The subscriber's name."""
        self.tenant = tenant
        self.channel = channel
        self.subject = subject
        """The NATS subject to which it was published."""
        self.sequence = sequence
        """Its place in the lane; of a batch, the last one's."""
        self.attempt = attempt
        """Counts from 1."""
        self.worker = worker
        """Which process this is."""
        self.part = part
        """Which part of the tenant's events this is, if they are divided."""
        self.fence = fence
        """Grows with each worker that takes over this tenant: what a store has seen a higher one for, it can refuse."""
        self.is_replay = is_replay
        """Whether it is handled once more because somebody asked for it."""
        self.payload = payload
        """The event as it is stored; of a batch, the last one."""
        self._stored_at = stored_at
        self._event_id = event_id
        self._remember = remember

    def of_service(self, service: str) -> Context:
        """The same for another subscriber."""
        other = Context.__new__(Context)
        for name in Context.__slots__:
            setattr(other, name, getattr(self, name))
        other.service = service
        return other

    @property
    def stored_at(self) -> datetime:
        """When the stream stored it."""
        return _EPOCH + timedelta(microseconds=self._stored_at // 1000)

    def once(self, connection: Any, event: Event[Any] | None = None) -> Any:
        """Whether this subscriber has never handled the event before, as far as the connection's database knows.

            if not await context.once(connection):
                return

        It is remembered in the connection's transaction, so what else is done there happens once, whatever is repeated.
        With an asynchronous connection the answer is awaited, else it is there at once. In a batch, say which event.

        WorkerFenced says that another worker has taken over meanwhile: whatever this one does would come too late.
        """
        id = event.id if event is not None else self._event_id
        if not id:
            raise ValueError("expected once to be told which event of the batch: context.once(connection, event)")
        if self._remember is None:
            raise RuntimeError("once needs a worker, or the test client; this context was made by hand")
        return self._remember(connection, self, id)
