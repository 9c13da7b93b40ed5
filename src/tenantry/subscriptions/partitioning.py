"""Divides the events of a tenant by a key of theirs, so that several workers can share them."""

from __future__ import annotations

from typing import Any
from zlib import crc32

from tenantry.application import Event, Subscriber, key_of


def part_of(subscriber: Subscriber, event: Event[Any]) -> int:
    """The same for the same key, in every process; events without one are in the first part."""
    assert subscriber.partition_by is not None
    key = key_of(subscriber.partition_by, event, f"partition_by of subscriber {subscriber.name}")
    return 0 if key is None else crc32(key.encode()) % subscriber.partitions
