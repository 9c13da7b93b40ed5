"""The streams of a query as they are now: what the catalog lists, each with its state on the server."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Final

from nats_bulk import BulkError, InvalidMessage
from nats_bulk.wire import require_subject
from pyspark_nats.access import Access
from pyspark_nats.broker import Broker, Found, Gone, Silent, State
from pyspark_nats.catalog import Catalog, Stream, checked, load_catalog
from pyspark_nats.errors import CatalogInvalid, OptionInvalid, StreamsUnavailable
from pyspark_nats.options import EARLIEST, Moment, ReadOptions

# With a catalog there may be many servers, and those that are away hold up the others so long.
PATIENCE_WITH_ONE_OF_MANY: Final = 2.0
# Who was silent is asked again after so many seconds; a question without an answer takes its time.
ASK_AGAIN: Final = 5.0

log = logging.getLogger("pyspark_nats")


class Selection:
    """Lives on the driver, as long as the query. One stream that cannot be read leaves the others to be read."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._catalog: Catalog | None = load_catalog(options.catalog, options.given) if options.catalog else None
        self._access: Access | None = None
        self._asked_last: dict[str, tuple[float, Silent]] = {}
        self.streams: dict[str, Stream] = {}
        """Those that the catalog lists, and those that it listed before and that the query may still have to read."""
        self.listed: set[str] = set()
        self.states: dict[str, State] = {}
        """Those that can be read."""
        self.gone: set[str] = set()
        self.set_aside: dict[str, str] = {}
        """Those that cannot be read now, and why."""

    @property
    def has_catalog(self) -> bool:
        """Somebody decides which streams there are; that one is missing is then no accident."""
        return self._catalog is not None

    def wants(self, key: str) -> bool:
        """Whether it is, or was, one of the streams that the query is to read."""
        return self.has_catalog or _matches(key, self._options.streams)

    def access_to(self, stream: Stream) -> Access:
        return stream.access or self._default_access(stream.key)

    def stream_of(self, key: str) -> Stream | None:
        """What a catalog meant by a key that it does not list any more is known only while it is remembered."""
        if key not in self.streams and not self.has_catalog:
            try:
                self.streams[key] = Stream(key)
            except CatalogInvalid:
                return None  # the checkpoint is of a query that had a catalog
        return self.streams.get(key)

    def by_place(self, streams: Iterable[Stream]) -> list[tuple[Access, list[Stream]]]:
        """Streams that can be asked about over one connection."""
        places: dict[tuple[object, ...], tuple[Access, list[Stream]]] = {}
        for stream in streams:
            access = self.access_to(stream)
            place = (*access.shares_connection_with(), access.api_prefix)
            places.setdefault(place, (access, []))[1].append(stream)
        return list(places.values())

    def look(self, known: Iterable[str] = ()) -> None:
        """See what is there. `known` are streams that the query has read from, whether or not they are still listed."""
        self._access = self._options.access.resolve()
        remembered = set(known)
        found = self._look_by_name() if self._catalog is None else self._look_by_catalog(self._catalog)
        departed = [self.stream_of(key) for key in remembered - self.listed]
        found |= self._describe([stream for stream in departed if stream])
        kept = self.listed | remembered
        self.streams = {key: stream for key, stream in self.streams.items() if key in kept}
        self._sort(found)

    def require_all(self, start: Moment | None = None) -> None:
        """Before a query starts, what it is to read must be there: a name that is wrong is mostly a slip.

        A query that starts at the earliest message can wait for those that it did not name; a batch read cannot.
        """
        named = {name for name in self._options.streams if not _is_pattern(name)}
        if missing := sorted(named - self.listed):
            raise StreamsUnavailable(f"there is no stream {', '.join(missing)} in this account")
        if not self.listed:
            log.warning("there is no stream yet that matches %s", ", ".join(self._options.streams) or "the catalog")
        can_wait = start is not None and start == Moment(EARLIEST, {})
        for key, reason in sorted(self.set_aside.items()):
            if key in named or not can_wait:
                raise StreamsUnavailable(f"stream {key} cannot be read: {reason}")

    # -- what is there ----------------------------------------------------------------------------------------------

    def _default_access(self, key: str) -> Access:
        if self._access is None:
            raise OptionInvalid(f"expected the option nats.url, for the catalog does not say how to reach {key}")
        return self._access

    def _look_by_name(self) -> dict[str, Found]:
        names = self._options.streams
        broker = Broker(self._default_access("them"))
        found: dict[str, Found] = {}
        if any(map(_is_pattern, names)):
            found |= {name: state for name, state in broker.list_all().items() if _matches(name, names)}
        else:
            found |= self._ask_those_who_may_answer(broker, {name: name for name in names})
        self.listed = {name for name, state in found.items() if not isinstance(state, Gone)}
        self.streams |= {name: Stream(name) for name in self.listed if name not in self.streams}
        return found

    def _look_by_catalog(self, catalog: Catalog) -> dict[str, Found]:
        try:
            streams = checked(catalog(), self._options.catalog)
        except Exception as problem:
            if isinstance(problem, CatalogInvalid) and not self.listed:
                raise
            if not self.listed:
                raise CatalogInvalid(f"the catalog {self._options.catalog!r} failed: {problem!r}") from problem
            log.warning("the catalog failed, and the streams are taken to be as they were: %r", problem)
            streams = {key: self.streams[key] for key in self.listed}
        self.streams |= streams
        self.listed = set(streams)
        return self._describe(streams.values())

    def _describe(self, streams: Iterable[Stream]) -> dict[str, Found]:
        found: dict[str, Found] = {}
        for access, together in self.by_place(streams):
            names = {stream.key: stream.name for stream in together}
            if not self.has_catalog:
                found |= self._ask_those_who_may_answer(Broker(access), names)
                continue
            try:
                found |= self._ask_those_who_may_answer(Broker(access, PATIENCE_WITH_ONE_OF_MANY), names)
            except (BulkError, StreamsUnavailable) as problem:
                found |= self._remember_silent(dict.fromkeys(names, Silent(str(problem))))
        return found

    def _ask_those_who_may_answer(self, broker: Broker, names: Mapping[str, str]) -> dict[str, Found]:
        """By key; those who were silent a moment ago still are."""
        now = time.monotonic()
        found: dict[str, Found] = {
            key: silent for key, (at, silent) in self._asked_last.items() if key in names and now - at < ASK_AGAIN
        }
        asked = {key: name for key, name in names.items() if key not in found}
        answers = broker.describe(set(asked.values())) if asked else {}
        answered = {key: answers[name] for key, name in asked.items()}
        self._remember_silent(answered)
        return found | answered

    def _remember_silent(self, answers: Mapping[str, Found]) -> Mapping[str, Found]:
        now = time.monotonic()
        for key, answer in answers.items():
            if isinstance(answer, Silent):
                self._asked_last[key] = now, answer
            else:
                self._asked_last.pop(key, None)
        return answers

    def _sort(self, found: Mapping[str, Found]) -> None:
        before = self.set_aside
        self.states, self.gone, self.set_aside = {}, set(), {}
        for key, answer in found.items():
            if isinstance(answer, Gone):
                self.gone.add(key)
            elif reason := _why_not(self.streams[key], answer):
                self.set_aside[key] = reason
                if before.get(key) != reason:
                    log.warning("stream %s is not read now: %s", key, reason)
            elif isinstance(answer, State):
                self.states[key] = answer


def _why_not(stream: Stream, answer: State | Silent) -> str:
    if isinstance(answer, Silent):
        return answer.reason
    try:
        require_subject(stream.name)
    except InvalidMessage:
        return "its name has characters that a subject must not have"
    return "" if answer.direct else "it does not allow direct get: set allow_direct on it"


def _matches(name: str, patterns: tuple[str, ...]) -> bool:
    return _expression(patterns).fullmatch(name) is not None


@lru_cache
def _expression(patterns: tuple[str, ...]) -> re.Pattern[str]:
    return re.compile("|".join(".*".join(map(re.escape, pattern.split("*"))) for pattern in patterns), re.DOTALL)


def _is_pattern(name: str) -> bool:
    return "*" in name
