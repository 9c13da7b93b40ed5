"""Connections of this process. Spark uses a Python worker for many tasks, and each would otherwise connect anew."""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from nats_bulk import Connection
from pyspark_nats.access import Access

MOST: Final = 64


class Connections:
    """Opens a connection at the first use; the longest unused makes room for one too many."""

    def __init__(self, most: int = MOST) -> None:
        self._most = most
        self._open: OrderedDict[tuple[object, ...], tuple[Connection, Access]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._open)

    def use(self, access: Access) -> Connection:
        key = access.shares_connection_with()
        connection, known = self._open.get(key, (None, access))
        if connection is None:
            connection = access.connect()
        elif known.credentials != access.credentials:
            connection.renew(access.credentials)
        self._open[key] = connection, access
        self._open.move_to_end(key)
        while len(self._open) > self._most:
            _, (unused, _) = self._open.popitem(last=False)
            unused.close()
        return connection

    def close(self) -> None:
        while self._open:
            self._open.popitem()[1][0].close()


CONNECTIONS: Final = Connections()
