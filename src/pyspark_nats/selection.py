"""The streams of a query as they are now: what the catalog lists, each with its state on the server."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from fnmatch import fnmatchcase

from pyspark_nats.access import Access
from pyspark_nats.broker import GONE, Broker, Gone, State
from pyspark_nats.catalog import Catalog, Stream, checked, load_catalog
from pyspark_nats.errors import OptionInvalid, StreamsUnavailable
from pyspark_nats.options import ReadOptions

log = logging.getLogger("pyspark_nats")


class Selection:
    """Lives on the driver, as long as the query."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._catalog: Catalog | None = load_catalog(options.catalog, options.given) if options.catalog else None
        self._access: Access | None = None
        self._unreadable: set[str] = set()
        self.streams: dict[str, Stream] = {}
        """Those that the catalog lists, and those that it listed before and that a query may still have to read."""
        self.listed: set[str] = set()
        self.states: dict[str, State | Gone] = {}
        """Without those whose state nobody knows just now."""

    @property
    def has_catalog(self) -> bool:
        """Somebody decides which streams there are; that one is missing is then no accident."""
        return self._catalog is not None

    def wants(self, key: str) -> bool:
        """Whether it is, or was, one of the streams that the query is to read."""
        return self.has_catalog or _matches(key, self._options.streams)

    def access_to(self, stream: Stream) -> Access:
        access = stream.access or self._access
        if access is None:
            raise OptionInvalid(f"expected the option nats.url, for the catalog does not say how to reach {stream.key}")
        return access

    def look(self, known: Iterable[str] = ()) -> None:
        """See what is there. `known` are streams that the query has read from, whether or not they are still listed."""
        self._access = self._options.access.resolve()
        states = self._look_by_catalog(self._catalog) if self._catalog else self._look_by_name()
        departed = [self.former(key) for key in known if key not in self.listed]
        self.states = states | self._describe(stream for stream in departed if stream)
        self._set_unreadable_aside()

    def require_all(self) -> None:
        """Before a query starts, everything that it names must be there: a name that is wrong is mostly a slip."""
        named = [name for name in self._options.streams if not _is_pattern(name)]
        missing = [name for name in named if name not in self.listed]
        if missing:
            raise StreamsUnavailable(f"there is no stream {', '.join(missing)}; see `nats stream ls`")
        silent = [key for key in self.listed if key not in self.states and key not in self._unreadable]
        if silent:
            raise StreamsUnavailable(f"no answer from the leader of stream {', '.join(sorted(silent)[:10])}; try again")

    def _look_by_name(self) -> dict[str, State | Gone]:
        broker = Broker(self.access_to(Stream("any")))
        names = self._options.streams
        found: dict[str, State | Gone] = {}
        if any(map(_is_pattern, names)):
            found |= {name: state for name, state in broker.list_all().items() if _matches(name, names)}
            self.listed = set(found)
        else:
            found |= broker.describe(names)
            self.listed = {name for name in names if found.get(name) is not GONE}
        self.streams |= {name: Stream(name) for name in self.listed}
        return found

    def former(self, key: str) -> Stream | None:
        """One that is not listed any more. What a catalog meant by its key is known only while it is remembered."""
        return self.streams.get(key) or (None if self._catalog else Stream(key))

    def _look_by_catalog(self, catalog: Catalog) -> dict[str, State | Gone]:
        streams = checked(catalog(), self._options.catalog)
        self.streams |= streams
        self.listed = set(streams)
        return self._describe(streams.values())

    def _describe(self, streams: Iterable[Stream]) -> dict[str, State | Gone]:
        states: dict[str, State | Gone] = {}
        for access, together in self.by_place(streams):
            found = Broker(access).describe({stream.name for stream in together})
            states |= {stream.key: found[stream.name] for stream in together if stream.name in found}
        return states

    def by_place(self, streams: Iterable[Stream]) -> list[tuple[Access, list[Stream]]]:
        """Streams that can be asked about over one connection."""
        places: dict[tuple[object, ...], tuple[Access, list[Stream]]] = {}
        for stream in streams:
            access = self.access_to(stream)
            place = (*access.shares_connection_with(), access.api_prefix)
            places.setdefault(place, (access, []))[1].append(stream)
        return list(places.values())

    def _set_unreadable_aside(self) -> None:
        """A stream without direct get cannot be read; it waits until it can, and the others go on."""
        unreadable = {key for key, state in self.states.items() if isinstance(state, State) and not state.direct}
        for key in unreadable:
            del self.states[key]
        for key in sorted(unreadable - self._unreadable):
            log.warning("stream %s is not read, because it does not allow direct get: set allow_direct on it", key)
        self._unreadable = unreadable
        if named := sorted(unreadable.intersection(self._options.streams)):
            raise StreamsUnavailable(f"stream {named[0]} does not allow direct get: set allow_direct on it")


def _matches(name: str, patterns: Iterable[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def _is_pattern(name: str) -> bool:
    return any(mark in name for mark in "*?[")
