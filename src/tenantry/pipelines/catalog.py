"""The catalog that the source asks which lanes to read; it asks the supervisor, which knows.

The source lives in a process of its own, beside the driver. Credentials come over a socket that only this user can
open, so that they are in no option, file or checkpoint.
"""

from __future__ import annotations

from collections.abc import Mapping
from multiprocessing.connection import Client, Connection
from typing import Final, cast

from pyspark_nats import Stream

ADDRESS: Final = "catalog.address"
QUERY: Final = "catalog.query"


class Catalog:
    """What `pyspark_nats` makes once for each query, and calls for each batch."""

    def __init__(self, options: Mapping[str, str]) -> None:
        given = {name.lower(): value for name, value in options.items()}
        self._address = given[ADDRESS]
        self._query = given[QUERY]
        self._line: Connection | None = None

    def __call__(self) -> list[Stream]:
        try:
            return self._ask()
        except (OSError, EOFError):
            self._line = None
            return self._ask()

    def _ask(self) -> list[Stream]:
        if self._line is None:
            self._line = Client(self._address, family="AF_UNIX")
        self._line.send(self._query)
        answer = self._line.recv()
        if isinstance(answer, Exception):
            raise answer
        return cast("list[Stream]", answer)
