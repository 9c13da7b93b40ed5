"""Asks the broker what it has of a lane, when nobody here can know: after a crash, or an answer that never came.

The duplicate window of a stream ends after minutes; this is what keeps an event from being published twice after that.
"""

from __future__ import annotations

import json
import re
import threading
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Any, Final

import nats_bulk
from tenantry.errors import BrokerRefused
from tenantry.nats.connections import connect_bulk
from tenantry.tenants.lanes import Lane

FEW: Final = 1000
"""So many messages are read rather than asking from which time they are."""
CLOCK_SKEW: Final = timedelta(minutes=1)
_STREAM_NOT_FOUND: Final = 10059
# As it was sent, blanks at its end included.
_ID = re.compile(rb"\r\nNats-Msg-Id: ([^\r]*)\r\n")
_MESSAGE_NOT_FOUND: Final = 10037


class StreamGone(BrokerRefused):
    """There is no such stream."""


class Inspector:
    """May be used by several threads; each inspection has a connection to itself."""

    def __init__(self) -> None:
        self._idle: defaultdict[str, list[nats_bulk.Connection]] = defaultdict(list)
        self._lock = threading.Lock()

    def stored(self, lane: Lane, after: int, since: datetime) -> tuple[set[str], int]:
        """The message ids that the lane's stream has after a sequence, and that sequence's newest successor.

        Nothing that was emitted at `since` or later can have been published before, give or take the clocks.
        """
        with self._connection(lane) as connection:
            info = _ask(connection, f"STREAM.INFO.{lane.stream}", {})
            last = int(info["state"]["last_seq"])
            if after > last:
                # It is not the stream that it was: that one is gone, and this one began anew.
                after = 0
            first = max(after, int(info["state"]["first_seq"]) - 1) + 1
            if last - first >= FEW:
                first = _sequence_at(connection, lane.stream, since - CLOCK_SKEW, first, last)
            ids: set[bytes] = set()
            if first <= last:
                for batch in nats_bulk.read_range(connection, lane.stream, first, last):
                    for subject, header in zip(batch.subjects, batch.headers, strict=True):
                        if subject.startswith(f"{lane.prefix}."):
                            ids.update(_ID.findall(header))
            return {id.decode(errors="replace") for id in ids}, last

    def close(self) -> None:
        with self._lock:
            for connections in self._idle.values():
                for connection in connections:
                    connection.close()
            self._idle.clear()

    @contextmanager
    def _connection(self, lane: Lane) -> Iterator[nats_bulk.Connection]:
        with self._lock:
            idle = self._idle[lane.account]
            connection = idle.pop() if idle else None
        if connection is None:
            connection = connect_bulk(lane.broker, "tenantry-relay-inspector", reconnect_for=0)
        try:
            connection.wake()
            yield connection
        except BaseException:
            connection.close()
            raise
        # A tenant's account has few connections to spare.
        if self._idle.get(lane.account):
            connection.close()
        else:
            with self._lock:
                self._idle[lane.account].append(connection)


def _sequence_at(connection: nats_bulk.Connection, stream: str, time: datetime, first: int, last: int) -> int:
    """Before which none of the messages `first` to `last` was stored then or later.

    The server could be asked for the first message since a time. Where messages were deleted before that one, it may
    answer that there is none.
    """
    beyond = last + 1
    while first < beyond:
        middle = (first + beyond) // 2
        question = {"seq": middle, "next_by_subj": ">"}
        message = _ask(connection, f"STREAM.MSG.GET.{stream}", question, missing={}).get("message")
        if message is None or datetime.fromisoformat(message["time"]) >= time:
            beyond = middle
        else:
            first = int(message["seq"]) + 1
    return first


def _ask(
    connection: nats_bulk.Connection, verb: str, question: dict[str, Any], missing: dict[str, Any] | None = None
) -> dict[str, Any]:
    answer: dict[str, Any] = json.loads(connection.request(f"$JS.API.{verb}", json.dumps(question).encode()))
    if error := answer.get("error"):
        if missing is not None and error.get("err_code") == _MESSAGE_NOT_FOUND:
            return missing
        kind = StreamGone if error.get("err_code") == _STREAM_NOT_FOUND else BrokerRefused
        raise kind(f"NATS does not answer {verb}: {error.get('description', error)}")
    return answer
