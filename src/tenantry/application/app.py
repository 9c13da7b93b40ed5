"""What an application makes of its events: subscribers that handle them, pipelines that fill tables, projections that
keep documents.

Declaring is all that happens here; what is declared is run elsewhere, so that this stays quick to import.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, TypeVar

from tenantry.application.checks import (
    NAME,
    NAME_PATTERN,
    TABLE,
    TABLE_PATTERN,
    matches,
    read_types,
    require_channel,
    require_function,
    require_key,
)
from tenantry.application.event import Key
from tenantry.application.pipeline import TABLES_OF_CHANNELS, WAREHOUSE, Pipeline, Projection
from tenantry.application.subscriber import AfterLastRetry, Order, Start, Subscriber, declare_subscriber
from tenantry.errors import ApplicationInvalid
from tenantry.event import EVERY_TYPE

_Transform = TypeVar("_Transform", bound=Callable[[Any], Any])
_Evolve = TypeVar("_Evolve", bound=Callable[[Any, Any], Any])
_Handle = TypeVar("_Handle", bound=Callable[[Any, Any], Any])

RESERVED_SERVICES: Final = ("accounts", "pipelines", "push")
"""Under these names dead letters of our own are kept."""
RESERVED_PREFIX: Final = "push-"


class Tenantry:
    """An application: all that it makes of its events, by name.

    app = Tenantry("shop")
    """

    def __init__(self, name: str) -> None:
        if not matches(NAME, name):
            raise ApplicationInvalid(f"expected the application's name to match {NAME_PATTERN}, got: {name!r}")
        self.name = name
        self.pipelines: dict[str, Pipeline] = {}
        self.projections: dict[str, Projection] = {}
        self.subscribers: dict[str, Subscriber] = {}

    def subscriber(
        self,
        name: str,
        *,
        types: Iterable[str] = (EVERY_TYPE,),
        channel: str = "events",
        order: Order = "fifo",
        max_in_flight: int = 500,
        ack_wait: float = 30.0,
        retries: int = 5,
        backoff: float | Sequence[float] = 1.0,
        timeout: float | None = None,
        batch: int = 1,
        after_last_retry: AfterLastRetry = "skip",
        key: Key = "subject",
        partition_by: Key | None = None,
        partitions: int = 8,
        start: Start = "first",
        data: Any = None,
    ) -> Callable[[_Handle], _Handle]:
        """Handle the events of every tenant with `handle(event, context)`, async or not.

        `order` is `fifo`: a tenant's events one after the other, each after the one before it is done; or `parallel`:
        up to `max_in_flight` of a tenant at a time. Tenants never wait for each other.

        An event whose handler raises is tried again up to `retries` times. `backoff` is the pause before the first of
        them in seconds, doubled from then on up to five minutes, or a list of pauses; each is shortened at random. A
        handler that takes longer than `timeout` seconds has failed, too. After the last retry the event is a dead
        letter. Then a `fifo` subscriber goes on (`skip`), holds back what has the same `key` (`park_key`), or holds
        back everything of that tenant (`stop`) until the dead letter is redriven.

        With `batch` the handler gets a list of up to so many events that are there. If it raises, they are handled
        again one by one, in lists of one.

        `partition_by` spreads the events of each tenant over workers by a key of the event, in `partitions` parts,
        which are in order each for itself.

        A subscriber that is new begins with the `first` event that there is, or with those from `now` on.

        `data` is the type of `event.data`: a msgspec struct, a dataclass, a TypedDict, or a pydantic model. Without it,
        it is what the handler's `event: Event[Invoice]` says.
        """

        def declare(function: _Handle) -> _Handle:
            self._require_subscriber_name(name)
            self.subscribers[name] = declare_subscriber(
                function,
                name=name,
                types=types,
                channel=channel,
                order=order,
                max_in_flight=max_in_flight,
                ack_wait=ack_wait,
                retries=retries,
                backoff=backoff,
                timeout=timeout,
                batch=batch,
                after_last_retry=after_last_retry,
                key=key,
                partition_by=partition_by,
                partitions=partitions,
                start=start,
                data=data,
            )
            return function

        return declare

    def pipeline(
        self,
        *,
        table: str,
        types: Iterable[str] = (EVERY_TYPE,),
        name: str | None = None,
        channel: str = "events",
        stateful: bool = False,
    ) -> Callable[[_Transform], _Transform]:
        """Fill a table for each tenant with what the function makes of its events.

        The function takes a DataFrame of events and returns a DataFrame of rows. `types` are event types in which `*`
        stands for one word and `>` for all that follow. The pipeline has the name of its table unless it is given one.
        """
        chosen = table if name is None else name

        def declare(function: _Transform) -> _Transform:
            what = f"pipeline {chosen!r}"
            self._require_table(what, table)
            self._require_name(what, chosen)
            require_channel(what, channel)
            wanted = read_types(what, types)
            require_function(what, function, "events")
            self.pipelines[chosen] = Pipeline(chosen, table, wanted, channel, stateful, function)
            return function

        return declare

    def projection(
        self,
        name: str,
        *,
        key: Key,
        types: Iterable[str] = (EVERY_TYPE,),
        initial: Any = dict,
        channel: str = "events",
    ) -> Callable[[_Evolve], _Evolve]:
        """Keep a document for each key, brought up to date by `evolve(state, event)`.

        `key` is a path like `data.customer`, or `subject`, `id`, `source` or `type`, or a function of the event.
        An event that has no such value is for no document.

        `initial` is the state before a document's first event, or a function that makes it.

        `evolve` returns the new state, which must be JSON, or None to delete the document. It may change `state` in
        place, but must return it all the same: a function without `return` returns None, and thus deletes.
        """

        def declare(evolve: _Evolve) -> _Evolve:
            what = f"projection {name!r}"
            self._require_name(what, name)
            require_channel(what, channel)
            require_key(what, key)
            wanted = read_types(what, types)
            require_function(what, evolve, "state", "event")
            self.projections[name] = Projection(name, wanted, key, initial, channel, evolve)
            return evolve

        return declare

    def _require_name(self, what: str, name: str) -> None:
        if not matches(NAME, name):
            raise ApplicationInvalid(f"expected the name of {what} to match {NAME_PATTERN}")
        if name == WAREHOUSE:
            raise ApplicationInvalid(
                f"{what} has a name that is taken: the {WAREHOUSE} writes the tables of channels; choose another"
            )
        if name in self.pipelines or name in self.projections:
            kind = "pipeline" if name in self.pipelines else "projection"
            raise ApplicationInvalid(f"{what} has a name that is taken, by a {kind} of {self.name}; choose another")

    def _require_subscriber_name(self, name: str) -> None:
        what = f"subscriber {name!r}"
        if not matches(NAME, name):
            raise ApplicationInvalid(f"expected the name of {what} to match {NAME_PATTERN}")
        if name in RESERVED_SERVICES or name.startswith(RESERVED_PREFIX):
            raise ApplicationInvalid(f"{what} has a name that Tenantry itself uses; choose another")
        if name in self.subscribers:
            raise ApplicationInvalid(f"{what} has a name that is taken, by another of {self.name}; choose another")

    def _require_table(self, what: str, table: str) -> None:
        if not matches(TABLE, table):
            raise ApplicationInvalid(f"expected the table of {what} to match {TABLE_PATTERN}, got: {table!r}")
        if table in TABLES_OF_CHANNELS:
            raise ApplicationInvalid(
                f"{what} has a table that is taken: {table} holds the events of that channel; choose another"
            )
        for other in self.pipelines.values():
            if other.table == table:
                raise ApplicationInvalid(
                    f"{what} has a table that is taken: {table} is of pipeline {other.name!r}; choose another"
                )
