"""PostgreSQL as tasks reach it: connections that the next task of the process finds open, and transactions that are
done again when the server restarts."""

from __future__ import annotations

import atexit
import time
from collections.abc import Callable
from typing import Any, Final, TypeVar

import psycopg

APPLICATION: Final = "tenantry-task"
CONNECT_SECONDS: Final = 5
# Longer than a server takes to restart.
PATIENCE: Final = 30.0
SHORTEST_PAUSE: Final = 0.05
LONGEST_PAUSE: Final = 2.0
# Of operational errors, those of this class are about what was sent, and come again however often it is sent.
TOO_LARGE: Final = "54"

TaskConnection = psycopg.Connection[tuple[Any, ...]]
_Result = TypeVar("_Result")

_idle: Final[dict[str, list[TaskConnection]]] = {}


def transact(url: str, work: Callable[[TaskConnection], _Result], patience: float = PATIENCE) -> _Result:
    """Do the work in a transaction, and all of it again, in another one, if the database went away meanwhile."""
    # The work may take long by itself; patience is for the time since it failed.
    deadline: float | None = None
    pause = SHORTEST_PAUSE
    while True:
        try:
            return _once(url, work)
        except psycopg.OperationalError as problem:
            deadline = deadline or time.monotonic() + patience
            if is_about_data(problem) or time.monotonic() + pause > deadline:
                raise
        time.sleep(pause)
        pause = min(2 * pause, LONGEST_PAUSE)


@atexit.register
def close_idle() -> None:
    """Close the connections that wait for another task."""
    while _idle:
        for connection in _idle.popitem()[1]:
            connection.close()


def is_about_data(problem: psycopg.Error) -> bool:
    """Whether PostgreSQL refuses what it was sent, rather than being unable to take anything."""
    return isinstance(problem, psycopg.DataError) or (problem.sqlstate or "").startswith(TOO_LARGE)


def _once(url: str, work: Callable[[TaskConnection], _Result]) -> _Result:
    waiting = _idle.setdefault(url, [])
    connection = waiting.pop() if waiting else _connect(url)
    try:
        with connection.transaction():
            result = work(connection)
    except BaseException:
        # It may be of a server that is gone, and the others that wait are then, too.
        for each in (connection, *waiting):
            each.close()
        waiting.clear()
        raise
    waiting.append(connection)
    return result


def _connect(url: str) -> TaskConnection:
    return psycopg.connect(
        url,
        autocommit=True,
        application_name=APPLICATION,
        connect_timeout=CONNECT_SECONDS,
        # A plan that is made once for all sizes of arrays is a bad one for most.
        prepare_threshold=None,
    )
