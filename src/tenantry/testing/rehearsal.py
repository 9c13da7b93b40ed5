"""Lets a test hand events to subscribers without a broker, through the code that a worker hands them on with."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from itertools import count
from typing import Any
from uuid import uuid4

import msgspec

from tenantry.application import Subscriber, Tenantry
from tenantry.errors import ApplicationInvalid
from tenantry.event import Subject, now, type_matcher
from tenantry.nats.feed import Handed
from tenantry.subscriptions.spreading import Partition
from tenantry.testing.outcome import Letter, Outcome, Outcomes
from tenantry.testing.rehearsed_letters import RehearsedLetters
from tenantry.testing.rehearsed_place import NAMESPACE, Place


class Rehearsal:
    """The subscribers of an application, with everything around them in memory.

        rehearsal = Rehearsal(app)
        outcomes = await rehearsal.deliver("acme", "invoice.paid", {"total": 5})
        assert outcomes["invoices"].handled

    What it does not have is a broker and time: events come one after the other, in the order in which they are
    delivered, and what failed is tried again without waiting. What holds events back, holds them back here.
    """

    def __init__(self, app: Tenantry) -> None:
        self.once: set[tuple[str, str, str]] = set()
        """Service, tenant and id of the events of which `context.once` was asked, without a connection to a database,
        by handlers that then ended well."""
        self._app = app
        self._wants = {each.name: type_matcher(each.types) for each in app.subscribers.values()}
        self._letters = RehearsedLetters()
        self._places: dict[Partition, Place] = {}
        self._sequences: defaultdict[tuple[str, str], count[int]] = defaultdict(lambda: count(1))
        self._threads = ThreadPoolExecutor(1, thread_name_prefix="rehearsal")

    async def deliver(
        self,
        tenant: str,
        type: str,
        data: Any = None,
        *,
        channel: str = "events",
        id: str | None = None,
        source: str = "/rehearsal",
        subject: str | None = None,
        time: datetime | None = None,
        **extensions: str | int | bool,
    ) -> Outcomes:
        """Hand an event to every subscriber that it is for, with all retries; what came of it, by subscriber.

        `data` is whatever msgspec can write as JSON. `traceparent`, and what else an event may say, are `extensions`.
        """
        event = _document(type, data, id=id, source=source, subject=subject, time=time, **extensions)
        (outcomes,) = await self.deliver_documents(tenant, type, [event], channel=channel)
        return outcomes

    async def deliver_many(
        self, tenant: str, type: str, data: Iterable[Any], *, channel: str = "events"
    ) -> list[Outcomes]:
        """Events that are there at the same time: a subscriber with `batch` has them in lists."""
        return await self.deliver_documents(tenant, type, [_document(type, each) for each in data], channel=channel)

    async def deliver_documents(
        self, tenant: str, type: str, documents: Iterable[bytes], *, channel: str = "events"
    ) -> list[Outcomes]:
        """Messages as they are, which need not be events; `type` is that of the subject that they came to."""
        path = str(Subject.build(NAMESPACE, tenant, channel, type))
        wanted = [
            each for each in self._app.subscribers.values() if each.channel == channel and self._wants[each.name](type)
        ]
        delivered, places = [], dict[Partition, Place]()
        for document in documents:
            message = _message(path, document, next(self._sequences[tenant, channel]))
            outcomes = Outcomes(f"{type} on the channel {channel}")
            delivered.append(outcomes)
            for subscriber in wanted:
                outcome = outcomes[subscriber.name] = Outcome(service=subscriber.name)
                for part in range(subscriber.parts):
                    partition = Partition(subscriber.name, tenant, part)
                    places[partition] = self._place(partition, subscriber)
                    places[partition].add(message, outcome)
        for place in places.values():
            await place.handle()
        return delivered

    async def redrive(self, tenant: str, service: str) -> None:
        """Handle the tenant's dead letters of a subscriber again, in their order, and then what they held back."""
        if service not in self._app.subscribers:
            raise ApplicationInvalid(
                f"expected a subscriber of {self._app.name}, one of {', '.join(self._app.subscribers)}, got: {service}"
            )
        for partition, place in list(self._places.items()):
            if (partition.service, partition.tenant) == (service, tenant):
                await place.redrive()

    @property
    def dead_letters(self) -> list[Letter]:
        """In the order in which events were delivered, of each subscriber."""
        return [letter for _, (letter, _) in sorted(self._letters.letters.items())]

    def _place(self, partition: Partition, subscriber: Subscriber) -> Place:
        if partition not in self._places:
            self._places[partition] = Place(partition, subscriber, self._letters, self._threads, self.once)
        return self._places[partition]


def _document(type: str, data: Any, **attributes: Any) -> bytes:
    event = {"specversion": "1.0", "id": uuid4().hex, "source": "/rehearsal", "type": type, "time": now(), "data": data}
    given = {name: value for name, value in attributes.items() if value is not None}
    return msgspec.json.encode({name: value for name, value in (event | given).items() if value is not None})


def _message(subject: str, payload: bytes, sequence: int) -> Handed:
    return Handed(
        subject=subject.encode(),
        header=b"",
        payload=payload,
        reply=b"",
        sequence=sequence,
        deliveries=1,
        stored_at=round(now().timestamp() * 1e9),
        pending=0,
    )
