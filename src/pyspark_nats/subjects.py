"""Which subjects a query wants. Messages are filtered after they are read: only then is a gap known to be a gap."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache

from pyspark_nats.errors import OptionInvalid

_PATTERN = re.compile(r"(?:(?:\*|[^\s.*>]+)\.)*(?:\*|>|[^\s.*>]+)")


class SubjectFilter:
    """Patterns with NATS wildcards: `*` is one token, `>` one or more at the end. Without patterns it takes all."""

    def __init__(self, patterns: Iterable[str], excluding: Iterable[str] = ()) -> None:
        self._wanted = _one_of(patterns)
        self._unwanted = _one_of(excluding)
        self.takes = lru_cache(maxsize=65_536)(self._takes)

    def __bool__(self) -> bool:
        return bool(self._wanted or self._unwanted)

    def _takes(self, subject: str) -> bool:
        if self._wanted and not self._wanted.fullmatch(subject):
            return False
        return not (self._unwanted and self._unwanted.fullmatch(subject))


def _one_of(patterns: Iterable[str]) -> re.Pattern[str] | None:
    expressions = [_expression(pattern) for pattern in patterns]
    return re.compile("|".join(expressions)) if expressions else None


def checked_subjects(patterns: tuple[str, ...]) -> tuple[str, ...]:
    for pattern in patterns:
        if _PATTERN.fullmatch(pattern) is None:
            raise OptionInvalid(f"expected subjects to be like shop.orders.> or *.paid, got: {pattern!r}")
    return patterns


def _expression(pattern: str) -> str:
    parts = {"*": r"[^.]+", ">": ".+"}
    return r"\.".join(parts.get(part) or re.escape(part) for part in pattern.split("."))
