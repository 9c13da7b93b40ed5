"""Which streams a query reads. By default those that match a pattern; a program may supply a catalog of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Final, cast

from pyspark_nats.access import Access
from pyspark_nats.errors import CatalogInvalid, OptionInvalid
from pyspark_nats.subjects import checked_subjects

LIGHTEST: Final = 0.001
HEAVIEST: Final = 1000


@dataclass(frozen=True, slots=True)
class Stream:
    """A stream to read."""

    name: str
    """What it is called on its server."""
    weight: float = 1.0
    """Its share of a batch, against the others that have something to read."""
    group: str = ""
    """Streams of one group share one share, that of the heaviest; alone unless given."""
    most: float = 1.0
    """What part of a batch's limit its group may have at most: a flood then makes no batch long, and nobody wait."""
    key: str = ""
    """What rows and offsets call it; its name unless given. Needed where two accounts have streams of one name."""
    access: Access | None = None
    """How to reach it; by the options of the query unless given."""
    start: int | None = None
    """The sequence at which a query begins that has not read it yet; where the query's options say unless given."""
    subjects: tuple[str, ...] = ()
    """Only messages with one of these subjects; those that the query wants, unless given."""
    excluding: tuple[str, ...] = ()
    """No messages with one of these subjects."""

    def __post_init__(self) -> None:
        if not self.key:
            object.__setattr__(self, "key", self.name)
        if not all(isinstance(text, str) for text in (self.name, self.key)):
            raise CatalogInvalid(f"expected the name and key of a stream to be text, got: {self.name!r}, {self.key!r}")
        if not self.name or any(mark in self.name for mark in ".*> \t\r\n/\\"):
            raise CatalogInvalid(
                f"expected the name of a stream, without dots, wildcards or spaces, got: {self.name!r}"
            )
        try:
            checked_subjects(self.subjects + self.excluding)
        except OptionInvalid as problem:
            raise CatalogInvalid(f"stream {self.key}: {problem}") from None
        if self.key.startswith("."):
            raise CatalogInvalid(f"expected a key that does not start with a dot, got: {self.key!r}")
        most: object = self.most
        if not (isinstance(most, int | float) and 0 < most <= 1):
            raise CatalogInvalid(f"expected most of {self.key} to be a part, above 0 and up to 1, got: {self.most!r}")
        weight: object = self.weight
        if not (isinstance(weight, int | float) and LIGHTEST <= weight <= HEAVIEST):
            raise CatalogInvalid(
                f"expected the weight of {self.key} to be a number from {LIGHTEST} to {HEAVIEST}, got: {self.weight!r}"
            )


Catalog = Callable[[], Iterable[Stream]]


def load_catalog(path: str, options: Mapping[str, str]) -> Catalog:
    """`package.module:name`: a function of the options, or a class that is made with them once and then called."""
    module, colon, name = path.partition(":")
    try:
        if not (module and colon and name):
            raise CatalogInvalid(f"expected catalog to be like package.module:function, got: {path!r}")
        hook = getattr(import_module(module), name)
    except (ImportError, AttributeError) as problem:
        raise CatalogInvalid(
            f"cannot import the catalog {path!r}: {problem}; the module must be on the driver's PYTHONPATH "
            "(Spark does not look into --py-files when it plans a streaming query)"
        ) from None
    if not callable(hook):
        raise CatalogInvalid(f"expected the catalog {path!r} to be callable, got: {type(hook).__name__}")
    if not isinstance(hook, type):
        return lambda: hook(options)
    made = hook(options)
    if not callable(made):
        raise CatalogInvalid(f"expected the catalog {path!r} to make something that can be called: define __call__")
    return cast("Catalog", made)


def checked(streams: Iterable[Stream], path: str) -> dict[str, Stream]:
    """What a catalog gave, by key."""
    if not isinstance(streams, Iterable):
        raise CatalogInvalid(f"expected the catalog {path!r} to give streams, got: {streams!r:.80}")
    found: dict[str, Stream] = {}
    for stream in streams:
        if not isinstance(stream, Stream):
            raise CatalogInvalid(f"expected the catalog {path!r} to give pyspark_nats.Stream, got: {stream!r:.80}")
        if stream.key in found:
            raise CatalogInvalid(
                f"expected every stream of the catalog {path!r} to have a key of its own, got {stream.key!r} twice"
            )
        found[stream.key] = stream
    return found
