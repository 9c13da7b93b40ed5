"""Which subjects a query wants. Messages are filtered after they are read: only then is a gap known to be a gap."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache

from pyspark_nats.errors import OptionInvalid

_PATTERN = re.compile(r"(?:(?:\*|[^\s.*>]+)\.)*(?:\*|>|[^\s.*>]+)")


class SubjectFilter:
    """Patterns with NATS wildcards: `*` is one token, `>` one or more at the end."""

    def __init__(self, patterns: Iterable[str]) -> None:
        self._wanted = re.compile("|".join(map(_expression, patterns)))
        self.takes = lru_cache(maxsize=65_536)(self._takes)

    def _takes(self, subject: str) -> bool:
        return self._wanted.fullmatch(subject) is not None


def checked_subjects(patterns: tuple[str, ...]) -> tuple[str, ...]:
    for pattern in patterns:
        if _PATTERN.fullmatch(pattern) is None:
            raise OptionInvalid(f"expected subjects to be like shop.orders.> or *.paid, got: {pattern!r}")
    return patterns


def _expression(pattern: str) -> str:
    parts = {"*": r"[^.]+", ">": ".+"}
    return r"\.".join(parts.get(part) or re.escape(part) for part in pattern.split("."))
