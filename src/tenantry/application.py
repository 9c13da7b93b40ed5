"""What an application makes of its events: pipelines that fill tables, projections that keep documents.

Declaring is all that happens here; what is declared is run elsewhere, so that this stays quick to import.
"""

from __future__ import annotations

import copy
import importlib
import inspect
import re
import sys
import traceback
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from types import ModuleType
from typing import Any, Final, TypeVar

import msgspec

from tenantry.errors import ApplicationInvalid, SubjectInvalid
from tenantry.event import EVERY_TYPE, is_name, require_type_pattern

NAME_PATTERN: Final = r"[a-z0-9](?:[a-z0-9_-]{0,46}[a-z0-9])?"
TABLE_PATTERN: Final = r"[a-z0-9](?:[a-z0-9_]{0,46}[a-z0-9])?"
WAREHOUSE: Final = "warehouse"
"""What writes the events of every channel into a table of its own."""
TABLES_OF_CHANNELS: Final = ("events", "properties")
LONGEST_KEY: Final = 256

_NAME = re.compile(NAME_PATTERN)
_TABLE = re.compile(TABLE_PATTERN)
_ATTRIBUTES_AS_KEY: Final = ("subject", "id", "source", "type")

_Transform = TypeVar("_Transform", bound=Callable[[Any], Any])
_Evolve = TypeVar("_Evolve", bound=Callable[[Any, Any], Any])


class PipelineEvent(msgspec.Struct, frozen=True, kw_only=True):
    """An event as a projection sees it."""

    tenant: str
    """Whose it is: that of the stream it came through, whatever the event says itself."""
    channel: str
    type: str
    id: str
    source: str
    subject: str | None = None
    """What in the source it is about."""
    time: datetime | None = None
    """When it happened, if it says so."""
    data: Any = None
    """Its JSON, decoded."""
    trace: str | None = None
    """Its `traceparent`."""
    sequence: int
    """Its place in the lane."""


Key = str | Callable[[PipelineEvent], str | int | None]


@dataclass(frozen=True, slots=True)
class Pipeline:
    """A table for each tenant, made of its events."""

    name: str
    table: str
    types: tuple[str, ...]
    channel: str
    stateful: bool
    """Whether a row depends on more than one event, so that its query keeps state."""
    function: Callable[[Any], Any]
    """From a DataFrame of events to a DataFrame of rows."""


@dataclass(frozen=True, slots=True)
class Projection:
    """Documents for each tenant, each of them brought up to date by the events that have its key."""

    name: str
    types: tuple[str, ...]
    key: Key
    initial: Any
    channel: str
    evolve: Callable[[Any, PipelineEvent], Any]

    def key_of(self, event: PipelineEvent) -> str | None:
        """The document that the event is for; None: it is for no document."""
        found = self.key(event) if callable(self.key) else _follow(self.key, event)
        if found is None:
            return None
        if isinstance(found, bool) or not isinstance(found, str | int):
            raise TypeError(
                f"expected the key of projection {self.name} to be a string, a whole number or None, "
                f"got: {type(found).__name__} {str(found)[:80]!r} from {self._described_key} of event {event.id}"
            )
        key = str(found)
        # PostgreSQL keeps no text with a zero character in it.
        if not 0 < len(key) <= LONGEST_KEY or "\0" in key:
            raise ValueError(
                f"expected the key of projection {self.name} to be 1 to {LONGEST_KEY} characters, none of them zero, "
                f"got: {key[:80]!r} from {self._described_key} of event {event.id}"
            )
        return key

    def start(self) -> Any:
        """The state of a document before its first event; nobody else has it."""
        return self.initial() if callable(self.initial) else copy.deepcopy(self.initial)

    @property
    def _described_key(self) -> str:
        return "its function" if callable(self.key) else self.key


class Tenantry:
    """An application: all that it makes of its events, by name.

    app = Tenantry("shop")
    """

    def __init__(self, name: str) -> None:
        if not _matches(_NAME, name):
            raise ApplicationInvalid(f"expected the application's name to match {NAME_PATTERN}, got: {name!r}")
        self.name = name
        self.pipelines: dict[str, Pipeline] = {}
        self.projections: dict[str, Projection] = {}

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
            _require_channel(what, channel)
            wanted = _read_types(what, types)
            _require_function(what, function, "events")
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
            _require_channel(what, channel)
            _require_key(what, key)
            wanted = _read_types(what, types)
            _require_function(what, evolve, "state", "event")
            self.projections[name] = Projection(name, wanted, key, initial, channel, evolve)
            return evolve

        return declare

    def _require_name(self, what: str, name: str) -> None:
        if not _matches(_NAME, name):
            raise ApplicationInvalid(f"expected the name of {what} to match {NAME_PATTERN}")
        if name == WAREHOUSE:
            raise ApplicationInvalid(
                f"{what} has a name that is taken: the {WAREHOUSE} writes the tables of channels; choose another"
            )
        if name in self.pipelines or name in self.projections:
            kind = "pipeline" if name in self.pipelines else "projection"
            raise ApplicationInvalid(f"{what} has a name that is taken, by a {kind} of {self.name}; choose another")

    def _require_table(self, what: str, table: str) -> None:
        if not _matches(_TABLE, table):
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


def load_application(path: str, folder: Path | None = None) -> Tenantry:
    """The application that `module:attribute` names; what is in the folder, or else the current one, is found first."""
    name, _, attribute = path.partition(":")
    if not (name and attribute):
        raise ApplicationInvalid(f"expected an application to be named module:attribute, like shop:app, got: {path!r}")
    place = str((folder or Path.cwd()).absolute())
    if place not in sys.path:
        # It stays there: what the application imports later is found, too.
        sys.path.insert(0, place)
    module = _import(path, name, place)
    found = getattr(module, attribute, None)
    if isinstance(found, Tenantry):
        return found
    if hasattr(module, attribute):
        problem = f"expected {path} to be a Tenantry, got: {type(found).__name__}"
    else:
        problem = f"there is no {attribute} in the module {name}, which is {module.__file__}"
    others = [f"{name}:{other}" for other, value in vars(module).items() if isinstance(value, Tenantry)]
    remedy = f"there is {', '.join(others)}" if others else f'write {attribute} = Tenantry("…") there'
    raise ApplicationInvalid(f"{problem}; {remedy}")


def _import(path: str, name: str, place: str) -> ModuleType:
    importlib.invalidate_caches()
    try:
        return importlib.import_module(name)
    except (Exception, SystemExit) as problem:
        if isinstance(problem, ModuleNotFoundError) and problem.name and f"{name}.".startswith(f"{problem.name}."):
            raise ApplicationInvalid(
                f"there is no module {problem.name} for the application {path}; looked in {place} and among the "
                "installed packages: check the name, or start in the folder that has it"
            ) from None
        raise ApplicationInvalid(f"the application {path} cannot be imported: {_last_line(problem)}") from problem


def _last_line(problem: BaseException) -> str:
    line = (f"{type(problem).__name__}: {problem}".splitlines() or [""])[-1]
    if isinstance(problem, SyntaxError):
        # It says itself where it is.
        return line
    frame = traceback.extract_tb(problem.__traceback__)[-1]
    return f"{line} ({frame.filename}, line {frame.lineno})"


def _follow(path: str, event: PipelineEvent) -> Any:
    attribute, *members = path.split(".")
    found = getattr(event, attribute)
    for member in members:
        found = found.get(member) if isinstance(found, dict) else None
    return found


def _matches(pattern: re.Pattern[str], value: object) -> bool:
    return isinstance(value, str) and pattern.fullmatch(value) is not None


def _require_channel(what: str, channel: str) -> None:
    if not is_name("channel", channel):
        raise ApplicationInvalid(f"expected the channel of {what} to be a name like events, got: {channel!r}")


def _require_key(what: str, key: Key) -> None:
    if callable(key):
        return _require_function(f"the key of {what}", key, "event")
    first, *rest = str(key).split(".")
    if not (first in _ATTRIBUTES_AS_KEY and not rest) and not (first == "data" and all(rest)):
        raise ApplicationInvalid(
            f"expected the key of {what} to be a path like data.customer, or {', '.join(_ATTRIBUTES_AS_KEY)}, "
            f"or a function of the event, got: {key!r}"
        )


def _read_types(what: str, types: Iterable[str]) -> tuple[str, ...]:
    if isinstance(types, str):
        raise ApplicationInvalid(f"expected the types of {what} to be a list, like [{types!r}], got: {types!r}")
    try:
        wanted = tuple(require_type_pattern(each) for each in types)
    except SubjectInvalid as problem:
        raise ApplicationInvalid(f"{what} cannot be declared: {problem}") from None
    if not wanted:
        raise ApplicationInvalid(f"expected {what} to have types; leave them out to have all")
    return wanted


def _require_function(what: str, function: object, *parameters: str) -> None:
    expected = f"expected {what} to be a function of {' and '.join(parameters)}"
    if not callable(function):
        raise ApplicationInvalid(f"{expected}, got: {function!r}")
    if inspect.iscoroutinefunction(function):
        raise ApplicationInvalid(f"{expected}, got one that is async: write def instead of async def")
    try:
        inspect.signature(function).bind(*parameters)
    except TypeError as problem:
        raise ApplicationInvalid(f"{expected}: {problem}") from None
    except ValueError:
        # Some built-in functions do not say what they take.
        return
