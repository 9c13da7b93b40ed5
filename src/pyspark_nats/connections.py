"""Connections of this process. Spark uses a Python worker for many tasks, and each would otherwise connect anew."""

from __future__ import annotations

import logging
import time
from collections import OrderedDict
from typing import Final

from nats_bulk import Connection, ConnectionLost
from pyspark_nats.access import Access

MOST: Final = 256
# Longer than a server takes to restart.
PATIENCE: Final = 30.0
PAUSE: Final = 0.2

log = logging.getLogger("pyspark_nats")


class Connections:
    """Opens a connection at the first use; the longest unused makes room for one too many."""

    def __init__(self, most: int = MOST) -> None:
        self._most = most
        self._open: OrderedDict[tuple[object, ...], Connection] = OrderedDict()

    def __len__(self) -> int:
        return len(self._open)

    def use(self, access: Access, patience: float = PATIENCE) -> Connection:
        """A server that is away is waited for, so long."""
        key = access.shares_connection_with()
        connection = self._open.get(key)
        if connection is None:
            connection = self._open[key] = _connect(access, patience)
        self._open.move_to_end(key)
        while len(self._open) > self._most:
            self._open.popitem(last=False)[1].close()
        return connection

    def close(self) -> None:
        while self._open:
            self._open.popitem()[1].close()


def _connect(access: Access, patience: float) -> Connection:
    deadline = time.monotonic() + patience
    told = False
    while True:
        try:
            return access.connect()
        except ConnectionLost as problem:
            if time.monotonic() + PAUSE > deadline:
                raise
            if not told:
                log.warning("%s; trying again for %.0f s", problem, patience)
            told = True
        time.sleep(PAUSE)


CONNECTIONS: Final = Connections()
