"""`spark.readStream`: decides on the driver what each micro-batch reads."""

from __future__ import annotations

import time
from collections.abc import Iterator
from math import ceil
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from pyspark_nats.admission import FairAdmission, Want
from pyspark_nats.losses import Losses, sequences
from pyspark_nats.offsets import Offset
from pyspark_nats.options import ReadOptions
from pyspark_nats.reading import read_task
from pyspark_nats.selection import Selection
from pyspark_nats.starting import first_of, resolve_start
from pyspark_nats.task import Task, plan_cuts, plan_tasks

LOOK_AGAIN: Final = 0.1


class NatsStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Made twice: on the driver, where it lives as long as the query, and inside each task, which only reads."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._selection_if_made: Selection | None = None
        self._admission = FairAdmission()
        self._admission_of_bytes = FairAdmission()
        self._looked_at = 0.0
        self._was_idle = False
        self._latest: dict[str, int] = {}
        self._seen_ends: dict[str, int] = {}
        self._stop_at: dict[str, int] | None = None
        self._leaving: dict[str, int] = {}
        self._losses = Losses(fail=options.fail_on_loss)

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
        self._stop_at = {key: state.next for key, state in self._selection.states.items()}

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        self._selection.look()
        self._selection.require_all(self._options.starting)
        states = self._selection.states
        return Offset(
            next=resolve_start(self._options.starting, states, self._selection),
            created={key: state.created for key, state in states.items()},
            initial=True,
        ).document()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        self._wait_if_idle()
        position = Offset.parse(start)
        if self._options.drain_unlisted:
            self._selection.look(key for key, at in position.next.items() if at < self._leaving.get(key, at + 1))
        else:
            self._selection.look()
            for key in position.next.keys() - self._selection.listed:
                position.forget(key)
        begins, restarted = self._where_each_begins(position)
        granted = self._admit(self._pending(begins), limit)
        self._remember_ends(position)
        # Those that do not go on where they were are put where they are also if they have nothing to read yet.
        changed = {key: begins[key] for key in restarted}
        changed |= {key: begins[key] + count for key, count in granted.items()}
        self._was_idle = not changed
        return self._end(position, begins, changed).document() if changed else start

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        return Offset(self._latest).document() if self._latest else None

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        goal = Offset.parse(end)
        ranges = goal.ranges_since(Offset.parse(start))
        if not ranges:
            return []
        if not self._selection.streams:
            self._selection.look(ranges)  # a batch that is read again after a restart
        for key, (first, last) in list(ranges.items()):
            if not self._options.drain_unlisted and key not in self._selection.listed:
                del ranges[key]
                continue
            state = self._selection.states.get(key)
            if state and goal.is_another(key, state.created):
                self._losses.tell(f"stream {key} was deleted and made anew before {sequences(first, last)} were read")
                del ranges[key]
            elif self._selection.stream_of(key) is None:
                self._losses.tell(f"stream {key} left the catalog before {sequences(first, last)} were read")
                del ranges[key]
        return list(plan_tasks(ranges, goal.tasks, self._selection))

    # -- what it asks in a task -------------------------------------------------------------------------------------

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Task)
        return read_task(partition, self._options)

    # -- how far this batch goes ------------------------------------------------------------------------------------

    @property
    def _selection(self) -> Selection:
        if self._selection_if_made is None:
            self._selection_if_made = Selection(self._options)
        return self._selection_if_made

    def _wait_if_idle(self) -> None:
        """Spark asks a hundred times a second when there is nothing to read, and that is asked of a server."""
        if self._was_idle:
            time.sleep(max(0.0, self._looked_at + LOOK_AGAIN - time.monotonic()))
        self._looked_at = time.monotonic()

    def _where_each_begins(self, position: Offset) -> tuple[dict[str, int], list[str]]:
        """The next sequence of each stream that can be read now, and those that do not go on where they were."""
        for key in self._selection.gone:
            self._see_off(key, position)
        begins: dict[str, int] = {}
        restarted: list[str] = []
        for key, state in self._selection.states.items():
            at = position.next.get(key)
            if not self._selection.wants(key):
                continue  # the query was told to read others now; should it be told otherwise again, this one goes on
            if at is None:
                begins[key] = first_of(key, state, self._selection)
            elif position.is_another(key, state.created):
                if unread := self._end_of(key, position) - at:
                    self._losses.tell(
                        f"stream {key} was deleted and made anew with {unread} messages unread, from {at} on"
                    )
                begins[key] = state.first
                restarted.append(key)
            elif state.next < at:
                # After a power failure a server may lack what it had acknowledged, and will use the sequences again.
                self._losses.tell(
                    f"stream {key} ends at sequence {state.next - 1}, but {at - 1} had been read: it lost its end, "
                    "and some of what came since may be missed"
                )
                begins[key] = state.next
                restarted.append(key)
            else:
                if state.first > at:
                    self._losses.tell(f"stream {key} no longer has {sequences(at, state.first - 1)}")
                    restarted.append(key)
                begins[key] = max(at, state.first)
        return begins, restarted

    def _see_off(self, key: str, position: Offset) -> None:
        """A stream that is gone. If somebody said so, or all that was seen of it was read, then nothing is lost."""
        if key not in position.next:
            return
        unread = self._end_of(key, position) - position.next[key]
        said_so = not self._selection.wants(key) or (self._selection.has_catalog and key not in self._selection.listed)
        if unread and not said_so:
            at = position.next[key]
            self._losses.tell(f"stream {key} was deleted with {unread} messages unread, from sequence {at} on")
        position.forget(key)

    def _end_of(self, key: str, position: Offset) -> int:
        """How far it reached when somebody last looked."""
        at = position.next[key]
        return max(at, self._seen_ends.get(key, position.behind.get(key, at)))

    def _pending(self, begins: dict[str, int]) -> dict[str, int]:
        """How many sequences each stream has to read."""
        pending = {}
        for key, begin in begins.items():
            end = self._selection.states[key].next
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

    def _admit(self, pending: dict[str, int], limit: ReadLimit) -> dict[str, int]:
        if isinstance(limit, ReadMaxRows):
            pending = self._divide(self._admission, pending, limit.max_rows)
        return self._admit_bytes(pending)

    def _admit_bytes(self, pending: dict[str, int]) -> dict[str, int]:
        most = self._options.most_bytes_a_trigger
        if most is None:
            return pending
        each = {key: self._selection.states[key].bytes_each for key in pending}
        sizes = {key: ceil(count * each[key]) for key, count in pending.items()}
        if sum(sizes.values()) <= most:
            return pending
        granted = self._divide(self._admission_of_bytes, sizes, most)
        return {key: min(pending[key], max(1, int(size / each[key]))) for key, size in granted.items()}

    def _divide(self, admission: FairAdmission, pending: dict[str, int], room: int) -> dict[str, int]:
        streams = self._selection.streams
        wants = {key: Want(count, streams[key].weight, streams[key].most) for key, count in pending.items()}
        return admission.divide(wants, {key: streams[key].group for key in pending}, room)

    def _remember_ends(self, position: Offset) -> None:
        self._latest = {key: state.next for key, state in self._selection.states.items()}
        self._seen_ends = {key: end for key, end in self._seen_ends.items() if key in position.next} | self._latest
        self._leaving = {key: end for key, end in self._leaving.items() if key in position.next}

    def _end(self, position: Offset, begins: dict[str, int], changed: dict[str, int]) -> Offset:
        states = self._selection.states
        reached = position.next | changed
        end = Offset(
            next=reached,
            created=position.created | {key: states[key].created for key in changed},
            begins={key: begins[key] for key in changed if position.initial or begins[key] != position.next.get(key)},
            behind={key: end for key, end in self._seen_ends.items() if end > reached.get(key, end)},
        )
        end.tasks = plan_cuts(
            end.ranges_since(position), self._selection, self._options.tasks, order=self._options.order
        )
        return end
