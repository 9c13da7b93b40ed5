"""The events that came with a task, by lane: out of Arrow and not yet decoded, so that they can be decoded again."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any, Final, NamedTuple

import msgspec
import pyarrow as pa

from tenantry.application import Event

LaneName = tuple[str, str]
"""Tenant and channel."""

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_decode: Final = msgspec.json.Decoder().decode


class Arrival(NamedTuple):
    type: str
    id: str
    source: str
    subject: str | None
    time: int | None
    """In microseconds since 1970."""
    data: bytes | None
    """JSON."""
    trace: str | None
    sequence: int
    bytes: int

    def decode(self, tenant: str, channel: str) -> Event:
        type, id, source, subject, time, data, trace, sequence, _ = self
        return Event(
            tenant=tenant,
            channel=channel,
            type=type,
            id=id,
            source=source,
            subject=subject,
            time=None if time is None else _EPOCH + timedelta(microseconds=time),
            data=None if data is None else _decode(data),
            trace=trace,
            sequence=sequence,
        )


def read_arrivals(batches: Iterable[pa.RecordBatch]) -> dict[LaneName, list[Arrival]]:
    """Those of each lane in the order in which they came."""
    lanes: dict[LaneName, list[Arrival]] = {}
    for batch in batches:
        names = zip(_read_column(batch, "tenant"), _read_column(batch, "channel"), strict=True)
        columns = (_read_column(batch, field) for field in Arrival._fields)
        for name, arrival in zip(names, map(Arrival._make, zip(*columns, strict=True)), strict=True):
            found = lanes.get(name)
            if found is None:
                found = lanes[name] = []
            found.append(arrival)
    return lanes


def _read_column(batch: pa.RecordBatch, field: str) -> list[Any]:
    column = batch.column(field)
    if field == "time":
        column = column.cast(pa.timestamp("us", "UTC")).cast(pa.int64())
    elif field == "data":
        column = column.cast(pa.binary())
    found: list[Any] = column.to_pylist()
    return found
