"""Messages that a query had still to read and that are gone: an error that names them, or a warning."""

from __future__ import annotations

import logging
from typing import Final

from pyspark_nats.errors import DataLost

MOST_REMEMBERED: Final = 1000

log = logging.getLogger("pyspark_nats")


def sequences(first: int, last: int) -> str:
    return f"sequence {first}" if first == last else f"sequences {first} to {last}"


class Losses:
    def __init__(self, *, fail: bool) -> None:
        self._fail = fail
        self._told: set[str] = set()

    def tell(self, what: str) -> None:
        """Raise it, or say it once."""
        if self._fail:
            raise DataLost(f"{what}; to go on without what is lost, set failOnDataLoss to false")
        if what not in self._told:
            log.warning("%s; the query goes on without what is lost", what)
        if len(self._told) == MOST_REMEMBERED:
            self._told.clear()
        self._told.add(what)
