"""A projection's place in the database: its lanes, what tasks make of events there, and what is then stored."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, NamedTuple

import msgspec
import psycopg
import pyarrow as pa
from psycopg.rows import dict_row

from tenantry.application import Event, Projection
from tenantry.pipelines.folding import Folding

EVENTS = pa.schema(
    [
        ("tenant", pa.string()),
        ("channel", pa.string()),
        ("type", pa.string()),
        ("id", pa.string()),
        ("source", pa.string()),
        ("subject", pa.string()),
        ("time", pa.timestamp("us", "UTC")),
        ("data", pa.string()),
        ("trace", pa.string()),
        ("sequence", pa.int64()),
        ("bytes", pa.int64()),
    ]
)
SIZE = 100
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)

_numbers = itertools.count(1)


class Sent(NamedTuple):
    """An event for a document."""

    sequence: int
    subject: str | None
    data: Any = None
    tenant: str = "acme"

    def row(self) -> dict[str, Any]:
        return {
            "tenant": self.tenant,
            "channel": "events",
            "type": "thing.changed",
            "id": f"event-{self.sequence}",
            "source": "/test",
            "subject": self.subject,
            "time": NOON,
            "data": msgspec.json.encode(self.data).decode(),
            "trace": None,
            "sequence": self.sequence,
            "bytes": SIZE,
        }


def append(state: Any, event: Event) -> Any:
    """Keeps all that it was told, so that a document shows which events made it; `delete` deletes it."""
    if event.data == "delete":
        return None
    state.setdefault("seen", []).append([event.sequence, event.data])
    return state


@dataclass
class Place:
    """Lanes of a projection that no other test has."""

    url: str
    name: str = field(default_factory=lambda: f"things-{next(_numbers)}")

    def projection(self, evolve: Callable[[Any, Event], Any] = append, **others: Any) -> Projection:
        chosen: dict[str, Any] = {"types": (">",), "key": "subject", "initial": dict, "channel": "events"} | others
        return Projection(name=self.name, evolve=evolve, **chosen)

    def open_lanes(self, *tenants: str, pipeline: str = "", generation: int = 1) -> None:
        with psycopg.connect(self.url) as connection:
            for tenant in tenants:
                connection.execute(
                    "insert into tenantry.pipeline_lanes (pipeline, tenant_id, channel, query, place, generation) "
                    "values (%s, %s, 'events', 'all', 'somewhere', %s)",
                    [pipeline or self.name, tenant, generation],
                )

    def fold(
        self, *batches: Sequence[Sent], by: Projection | None = None, pipeline: str = ""
    ) -> dict[str, dict[str, Any]]:
        """One task over these batches; what it answers, by tenant."""
        folding = Folding(pipeline or self.name, by or self.projection(), self.url)
        rows = [row for batch in folding(_arrow(batches)) for row in batch.to_pylist()]
        return {row["tenant"]: row for row in rows}

    def documents(self, tenant: str = "acme", generation: int = 1) -> dict[str, Any]:
        """What is stored, by id; those that were deleted are None."""
        return {
            row["id"]: row["document"]
            for row in self.rows("documents", "projection")
            if row["tenant_id"] == tenant and row["generation"] == generation
        }

    def lane(self, tenant: str = "acme") -> dict[str, Any]:
        (row,) = [row for row in self.rows("pipeline_lanes", "pipeline") if row["tenant_id"] == tenant]
        return row

    def usage(self) -> list[dict[str, Any]]:
        return self.rows("usage", "pipeline")

    def resume(self, tenant: str = "acme") -> None:
        """As it is done when what was wrong is put right."""
        self.execute(
            "update tenantry.pipeline_lanes set parked_at = null, parked_sequence = null, parked_reason = null, "
            "parked_traceback = null where pipeline = %s and tenant_id = %s",
            [self.name, tenant],
        )

    def execute(self, statement: str, parameters: Sequence[Any] = ()) -> int:
        with psycopg.connect(self.url, options="-c tenantry.tenant=*") as connection:
            return connection.execute(statement.encode(), parameters).rowcount

    def rows(self, table: str, column: str) -> list[dict[str, Any]]:
        question = f"select * from tenantry.{table} where {column} = %s order by 1, 2, 3, 4"
        with psycopg.connect(self.url, options="-c tenantry.tenant=*", row_factory=dict_row) as connection:
            return connection.execute(question.encode(), [self.name]).fetchall()


def plain_fold(events: Iterable[Sent], evolve: Callable[[Any, Event], Any] = append) -> dict[str, Any]:
    """What the documents of one tenant must be."""
    states: dict[str, Any] = {}
    for sent in events:
        if sent.subject is not None:
            state = states.get(sent.subject)
            states[sent.subject] = evolve({} if state is None else state, event_of(sent))
    return states


def event_of(sent: Sent) -> Event:
    row = sent.row()
    del row["bytes"]
    return Event(**row | {"data": sent.data})


def _arrow(batches: Iterable[Sequence[Sent]]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        yield pa.RecordBatch.from_pylist([sent.row() for sent in batch], schema=EVENTS)
