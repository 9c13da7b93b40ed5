"""A service's durable interest in events, as it is declared."""

from __future__ import annotations

import inspect
import random
import typing
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, get_args, get_origin

from tenantry.application.checks import read_types, require_channel, require_key
from tenantry.application.event import Event, Key
from tenantry.errors import ApplicationInvalid

Order = Literal["fifo", "parallel"]
AfterLastRetry = Literal["skip", "park_key", "stop"]
Start = Literal["first", "now"]

LONGEST_BACKOFF: Final = 300.0
MOST_IN_FLIGHT: Final = 100_000
MOST_PARTITIONS: Final = 256
LARGEST_BATCH: Final = 10_000


@dataclass(frozen=True, slots=True)
class Backoff:
    """How long to wait before an event is tried again."""

    first: float = 1.0
    pauses: tuple[float, ...] = ()
    """Instead of doubling; the last one again and again."""

    def pause(self, failures: int) -> float:
        """After so many failures; never quite the same, so that what failed together does not come back together."""
        if self.pauses:
            longest = self.pauses[min(failures, len(self.pauses)) - 1]
        else:
            longest = min(self.first * 2 ** min(failures - 1, 30), LONGEST_BACKOFF)
        return longest * random.uniform(0.5, 1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscriber:
    name: str
    types: tuple[str, ...]
    channel: str
    order: Order
    max_in_flight: int
    ack_wait: float
    retries: int
    backoff: Backoff
    timeout: float | None
    batch: int
    after_last_retry: AfterLastRetry
    key: Key
    partition_by: Key | None
    partitions: int
    start: Start
    data: Any
    """The type of the events' data; None: whatever their JSON is."""
    function: Callable[[Any, Any], Any]
    is_async: bool

    @property
    def is_fifo(self) -> bool:
        return self.order == "fifo"

    @property
    def parts(self) -> int:
        """Into how many parts each tenant's events are divided."""
        return self.partitions if self.partition_by is not None else 1

    @property
    def in_flight(self) -> int:
        """How many events of a tenant may be handed out and not yet done."""
        return self.batch if self.is_fifo else max(self.max_in_flight, self.batch)

    def in_flight_of(self, most: int) -> int:
        """The same, of a tenant that may have no more than that."""
        return self.in_flight if self.is_fifo else min(self.in_flight, most)


def declare_subscriber(
    function: Callable[[Any, Any], Any],
    *,
    name: str,
    types: Iterable[str],
    channel: str,
    order: Order,
    max_in_flight: int,
    ack_wait: float,
    retries: int,
    backoff: float | Sequence[float],
    timeout: float | None,
    batch: int,
    after_last_retry: AfterLastRetry,
    key: Key,
    partition_by: Key | None,
    partitions: int,
    start: Start,
    data: Any,
) -> Subscriber:
    """Raises ApplicationInvalid, which names what is wrong."""
    what = f"subscriber {name!r}"
    require_channel(what, channel)
    _require_one_of(what, "order", order, get_args(Order))
    _require_one_of(what, "after_last_retry", after_last_retry, get_args(AfterLastRetry))
    _require_one_of(what, "start", start, get_args(Start))
    _require_number(what, "max_in_flight", max_in_flight, 1, MOST_IN_FLIGHT)
    _require_number(what, "batch", batch, 1, LARGEST_BATCH)
    _require_number(what, "retries", retries, 0, 1_000_000)
    _require_number(what, "partitions", partitions, 1, MOST_PARTITIONS)
    _require_number(what, "ack_wait", ack_wait, 1.0, 86_400)
    if timeout is not None:
        _require_number(what, "timeout", timeout, 0.001, 86_400)
        if not _is_async(function):
            raise ApplicationInvalid(
                f"{what} has a timeout and is a plain function, which nothing can end: write async def, or leave it out"
            )
    if order == "parallel" and after_last_retry != "skip":
        raise ApplicationInvalid(
            f"{what} has after_last_retry={after_last_retry!r}, which is about what follows a dead letter, and "
            'order="parallel", where nothing follows anything: use order="fifo", or "skip"'
        )
    require_key(what, key)
    if partition_by is not None:
        require_key(f"partition_by of {what}", partition_by)
    _require_handler(what, function)
    return Subscriber(
        name=name,
        types=read_types(what, types),
        channel=channel,
        order=order,
        max_in_flight=max_in_flight,
        ack_wait=ack_wait,
        retries=retries,
        backoff=_read_backoff(what, backoff),
        timeout=timeout,
        batch=batch,
        after_last_retry=after_last_retry,
        key=key,
        partition_by=partition_by,
        partitions=partitions,
        start=start,
        data=data if data is not None else _data_of(function),
        function=function,
        is_async=_is_async(function),
    )


def _require_one_of(what: str, field: str, value: object, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise ApplicationInvalid(f"expected {field} of {what} to be {' or '.join(choices)}, got: {value!r}")


def _require_number(what: str, field: str, value: Any, least: float, most: float) -> None:
    is_number = isinstance(value, int if isinstance(least, int) else int | float) and not isinstance(value, bool)
    if not is_number or not least <= value <= most:
        wanted = "a whole number" if isinstance(least, int) else "a number"
        raise ApplicationInvalid(f"expected {field} of {what} to be {wanted} from {least} to {most}, got: {value!r}")


def _read_backoff(what: str, backoff: float | Sequence[float]) -> Backoff:
    pauses = tuple(backoff) if isinstance(backoff, list | tuple) else ()
    given = pauses or (backoff,)
    if not all(isinstance(each, int | float) and not isinstance(each, bool) and 0 < each <= 86_400 for each in given):
        raise ApplicationInvalid(
            f"expected backoff of {what} to be seconds, or a list of seconds, each above 0, got: {backoff!r}"
        )
    return Backoff(pauses=pauses) if pauses else Backoff(first=float(backoff))  # type: ignore[arg-type]


def _require_handler(what: str, function: object) -> None:
    expected = f"expected {what} to be a function of event and context"
    if not callable(function):
        raise ApplicationInvalid(f"{expected}, got: {function!r}")
    if inspect.isasyncgenfunction(function) or inspect.isgeneratorfunction(function):
        raise ApplicationInvalid(f"{expected}, got a generator: nobody would take what it yields")
    try:
        inspect.signature(function).bind("event", "context")
    except TypeError as problem:
        raise ApplicationInvalid(f"{expected}: {problem}") from None
    except ValueError:
        # Some built-in functions do not say what they take.
        return


def _is_async(function: Any) -> bool:
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(getattr(function, "__call__", None))  # noqa: B004


def _data_of(function: Callable[..., Any]) -> Any:
    """What the handler says of the data of its events, in `event: Event[Invoice]` or `events: list[Event[Invoice]]`."""
    try:
        hints = typing.get_type_hints(function)
        first = next(iter(inspect.signature(function).parameters))
    except (TypeError, ValueError, NameError, AttributeError, StopIteration):
        return None
    hint = hints.get(first)
    if get_origin(hint) in (list, Sequence):
        hint = get_args(hint)[0]
    if get_origin(hint) is Event:
        (data,) = get_args(hint)
        return None if data is Any else data
    return None
