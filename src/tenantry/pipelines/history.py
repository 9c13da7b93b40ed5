"""All events that a lane has had: those that are still in its stream, and of the others what the warehouse has."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable
from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from pyspark_nats import Access, Stream
from pyspark_nats.broker import Broker, Gone, Silent, State
from tenantry.errors import BrokerUnreachable, TenantConflict, TenantryError
from tenantry.pipelines.events import EVENT_COLUMNS, read_messages
from tenantry.pipelines.keys import LaneName, key_of
from tenantry.pipelines.offset_log import Ranges
from tenantry.tenants.lanes import Lane
from tenantry.tenants.tenant import Status, Tenant

if TYPE_CHECKING:
    from tenantry.pipelines.engine import Engine

PATIENCE: Final = 10.0
_KEPT: Final = (*EVENT_COLUMNS, "bytes")
_FROM_STREAM, _FROM_TABLE = 0, 1


class Span(NamedTuple):
    """Sequences of a lane, both ends included."""

    first: int
    last: int


class History:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def reach(self, lanes: Iterable[LaneName]) -> dict[LaneName, State | TenantryError]:
        """From where to where the stream of each lane goes now, or why that cannot be said."""
        found: dict[LaneName, State | TenantryError] = {}
        known: dict[tuple[str, str], State | TenantryError] = {}
        for name in lanes:
            try:
                tenant, lane = self.place(name)
            except TenantryError as problem:
                found[name] = problem
                continue
            stream = lane.account, lane.stream
            if stream not in known:
                known[stream] = self._ask(name, lane, self._engine.access.to(tenant, lane))
            found[name] = known[stream]
        return found

    def first_since(self, name: LaneName, moment: datetime) -> int:
        """The first sequence that came in at this moment or later; the next one if there is none."""
        tenant, lane = self.place(name)
        # To ask by time takes more than those who read may do.
        access = replace(self._engine.access.to(tenant, lane), credentials=lane.broker.credentials)
        state = self._ask(name, lane, access)
        if isinstance(state, TenantryError):
            raise state
        nanoseconds = int(moment.timestamp() * 1_000_000) * 1000
        first = Broker(access, PATIENCE).sequences_at({lane.stream: state}, nanoseconds)[lane.stream]
        table = self._table(tenant, name.channel)
        if table is None:
            return first
        kept = table.to_pyarrow_dataset().to_table(
            columns=["sequence"], filter=(pc.field("received") >= moment) & (pc.field("sequence") < first)
        )
        earlier: int | None = pc.min(kept["sequence"]).as_py()
        return first if earlier is None else earlier

    @contextmanager
    def read(
        self, spans: Mapping[LaneName, Span], types: str | None, *, with_tables: bool = True
    ) -> Iterator[DataFrame | None]:
        """The events of these spans, whole lanes in a partition, each in order; none if there surely are none.

        Of lanes that share a stream, also those between the first and the last of all of their spans.
        """
        reaches = self.reach(spans)
        for problem in reaches.values():
            if isinstance(problem, TenantryError):
                raise problem
        states = {name: state for name, state in reaches.items() if isinstance(state, State)}
        streams, ranges = self._streams(spans, states)
        stored = self._stored(spans, states) if with_tables else []
        if not streams:
            yield self._together(None, stored, types)
            return
        with self._engine.reader.read(streams, ranges) as messages:
            events = read_messages(messages, types).where(F.col("problem").isNull() & F.col("lane").isin(_named(spans)))
            yield self._together(events.select(*_KEPT), stored, types)

    def place(self, name: LaneName) -> tuple[Tenant, Lane]:
        tenant, lane = self._engine.roster.find(name.tenant), self._engine.roster.lane(name.tenant, name.channel)
        if tenant is None or lane is None or tenant.status == Status.DELETING:
            raise TenantConflict(f"{name} is gone")
        if tenant.status != Status.ACTIVE:
            raise TenantConflict(f"tenant {tenant.id} is {tenant.status}; `tenantry tenant resume {tenant.id}` first")
        return tenant, lane

    def _ask(self, name: LaneName, lane: Lane, access: Access) -> State | TenantryError:
        answer = Broker(access, PATIENCE).describe([lane.stream])[lane.stream]
        if isinstance(answer, Gone):
            return TenantConflict(f"the stream {lane.stream} of {name} is gone; `tenantry tenant drift --repair`")
        if isinstance(answer, Silent):
            return BrokerUnreachable(f"the stream {lane.stream} of {name} cannot be read now: {answer.reason}")
        return answer

    def _streams(self, spans: Mapping[LaneName, Span], states: Mapping[LaneName, State]) -> tuple[list[Stream], Ranges]:
        streams: dict[str, Stream] = {}
        ranges: Ranges = {}
        for name, span in spans.items():
            tenant, lane = self.place(name)
            first, last = max(span.first, states[name].first), min(span.last, states[name].next - 1)
            if first > last:
                continue
            key = lane.stream if lane.is_shared else key_of(name, tenant.uid, 0)
            before, (low, high) = streams.get(key), ranges.get(key, (first, last))
            ranges[key] = min(low, first), max(high, last)
            streams[key] = Stream(
                lane.stream,
                key=key,
                access=self._engine.access.to(tenant, lane),
                subjects=(*(before.subjects if before else ()), lane.subjects) if lane.is_shared else (),
            )
        return list(streams.values()), ranges

    def _stored(self, spans: Mapping[LaneName, Span], states: Mapping[LaneName, State]) -> list[pa.Table]:
        """What the warehouse has of that which the streams may have no more."""
        found = []
        for name, span in spans.items():
            tenant, lane = self.place(name)
            # A shared stream also drops from its middle: it keeps so many of each type.
            if span.first >= states[name].first and not lane.is_shared:
                continue
            if (table := self._table(tenant, name.channel)) is None:
                continue
            sequence = pc.field("sequence")
            last = span.last if lane.is_shared else min(span.last, states[name].first - 1)
            rows = table.to_pyarrow_dataset().to_table(filter=(sequence >= span.first) & (sequence <= last))
            if len(rows):
                found.append(rows)
        return found

    def _table(self, tenant: Tenant, channel: str) -> DeltaTable | None:
        locations = self._engine.tables.claim([(tenant, channel)])
        return self._engine.tables.open(locations[tenant.id, channel])

    def _together(self, streamed: DataFrame | None, stored: list[pa.Table], types: str | None) -> DataFrame | None:
        if not stored:
            return streamed
        rows = self._engine.spark.createDataFrame(pa.concat_tables(stored))
        if types is not None:
            rows = rows.where(F.col("type").rlike(types))
        kept = rows.withColumns(
            {
                "bytes": F.coalesce(F.octet_length("data"), F.lit(0)).cast("long"),
                "data": F.parse_json("data"),
                "lane": F.concat("tenant", F.lit("/"), "channel"),
            }
        ).select(*_KEPT, F.lit(_FROM_TABLE).alias("_from"))
        everything = kept if streamed is None else streamed.withColumn("_from", F.lit(_FROM_STREAM)).unionByName(kept)
        each = Window.partitionBy("tenant", "channel").orderBy("sequence", "_from")
        once = everything.withColumn("_before", F.lag("sequence", 1, 0).over(each)).where(
            F.col("_before") < F.col("sequence")
        )
        return once.select(*_KEPT).sortWithinPartitions("tenant", "channel", "sequence")


def _named(lanes: Iterable[LaneName]) -> list[str]:
    return [str(lane) for lane in lanes]
