"""`spark.readStream`: decides on the driver what each micro-batch reads."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from pyspark_nats.admission import FairAdmission, Want
from pyspark_nats.broker import Gone, State
from pyspark_nats.errors import DataLost
from pyspark_nats.offsets import Offset
from pyspark_nats.options import ReadOptions
from pyspark_nats.reading import read_task
from pyspark_nats.selection import Selection
from pyspark_nats.starting import resolve
from pyspark_nats.task import Task, plan_cuts, plan_tasks

log = logging.getLogger("pyspark_nats")


class NatsStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Made twice: on the driver, where it lives as long as the query, and inside each task, which only reads."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._selection_if_made: Selection | None = None
        self._admission = FairAdmission()
        self._latest: dict[str, int] = {}
        self._seen_ends: dict[str, int] = {}
        self._stop_at: dict[str, int] | None = None
        self._leaving: dict[str, int] = {}
        self._told: set[str] = set()

    def __getstate__(self) -> dict[str, Any]:
        return {"options": self._options}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["options"])  # type: ignore[misc]

    # -- what Spark asks on the driver ------------------------------------------------------------------------------

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        most = self._options.most_a_trigger
        return ReadMaxRows(most) if most else ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._selection.look()
        self._stop_at = {key: state.next for key, state in self._known_states().items()}

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        self._selection.look()
        self._selection.require_all()
        states = self._known_states()
        created = max((state.created for state in states.values()), default=0)
        return Offset(resolve(self._options.starting, states, self._selection), created).document()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        position = Offset.parse(start)
        self._selection.look(position.next)
        begins = self._where_each_begins(position)
        pending = self._pending(begins)
        if isinstance(limit, ReadMaxRows):
            streams = self._selection.streams
            granted = self._admission.divide(
                {key: Want(count, streams[key].weight) for key, count in pending.items()},
                {key: streams[key].group for key in pending},
                limit.max_rows,
            )
        else:
            granted = pending
        self._latest = {key: state.next for key, state in self._known_states().items()}
        self._seen_ends |= self._latest
        moved = {key: begins[key] + count for key, count in granted.items()}
        # Streams that begin before where the query was are set back, also if they have nothing to read yet.
        set_back = {key: begin for key, begin in begins.items() if begin < position.next.get(key, 0)}
        if not (moved or set_back):
            return start
        return self._end(position, begins, set_back | moved).document()

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        return Offset(self._latest).document() if self._latest else None

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        goal = Offset.parse(end)
        ranges = goal.ranges_since(Offset.parse(start))
        if not ranges:
            return []
        if not self._selection.streams:
            self._selection.look(ranges)  # a batch that is read again after a restart
        for key, state in self._known_states().items():
            if key in ranges and state.created > goal.created:
                first, last = ranges.pop(key)
                self._lose(
                    f"stream {key} was deleted and made anew before its sequences {first} to {last} had been read"
                )
        return list(plan_tasks(ranges, goal.tasks, self._selection))

    # -- what it asks in a task -------------------------------------------------------------------------------------

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Task)
        return read_task(partition, self._options)

    # -----------------------------------------------------------------------------------------------------------------

    @property
    def _selection(self) -> Selection:
        if self._selection_if_made is None:
            self._selection_if_made = Selection(self._options)
        return self._selection_if_made

    def _known_states(self) -> dict[str, State]:
        return {key: state for key, state in self._selection.states.items() if isinstance(state, State)}

    def _where_each_begins(self, position: Offset) -> dict[str, int]:
        """The next sequence of each stream that can be read now."""
        begins = {}
        for key, state in self._selection.states.items():
            at = position.next.get(key)
            if isinstance(state, Gone):
                self._see_off(key, position)
            elif not self._selection.wants(key):
                continue  # the query was told to read others now; should it be told otherwise again, this one goes on
            elif at is None:
                begins[key] = state.first
            elif state.created > position.created:
                self._lose(f"stream {key} was deleted and made anew after its sequence {at - 1} had been read")
                begins[key] = state.first
            elif state.next < at:
                # After a power failure a server may lack what it had acknowledged, and will use the sequences again.
                self._lose(
                    f"stream {key} ends at sequence {state.next - 1}, but {at - 1} had been read: it lost its end, "
                    "and some of what came since may be missed"
                )
                begins[key] = state.next
            elif state.first > at:
                self._lose(f"stream {key} no longer has sequences {at} to {state.first - 1}")
                begins[key] = state.first
            else:
                begins[key] = at
        return begins

    def _see_off(self, key: str, position: Offset) -> None:
        """A stream that is gone. If somebody took it from the catalog, or all of it was read, then nothing is lost."""
        at = position.next.pop(key, None)
        told_so = self._selection.has_catalog or not self._selection.wants(key)
        if at is None or told_so or self._seen_ends.get(key) == at:
            return
        end = self._seen_ends.get(key)
        amount = f"{end - at} messages" if end else "nobody knows how many messages"
        self._lose(f"stream {key} was deleted with {amount} unread, from sequence {at} on")

    def _pending(self, begins: dict[str, int]) -> dict[str, int]:
        """How many sequences each stream has to read."""
        pending = {}
        states = self._known_states()
        for key, begin in begins.items():
            end = states[key].next
            if key in self._selection.listed:
                self._leaving.pop(key, None)
            else:
                # It has left the catalog: what it had then is still read.
                end = self._leaving.setdefault(key, end)
            if self._stop_at is not None:
                end = min(end, self._stop_at.get(key, 0))
            if end > begin:
                pending[key] = end - begin
        return pending

    def _end(self, position: Offset, begins: dict[str, int], changed: dict[str, int]) -> Offset:
        states = self._known_states()
        end = Offset(
            next=position.next | changed,
            created=max([position.created, *(states[key].created for key in changed)]),
            begins={key: begins[key] for key in changed if begins[key] != position.next.get(key)},
        )
        end.tasks = plan_cuts(
            end.ranges_since(position), self._selection, self._options.tasks, order=self._options.order
        )
        return end

    def _lose(self, what: str) -> None:
        if self._options.fail_on_loss:
            raise DataLost(f"{what}; to go on without what is lost, set failOnDataLoss to false")
        if what not in self._told:
            log.warning("%s; the query goes on without what is lost", what)
        self._told.add(what)
