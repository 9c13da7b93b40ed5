"""One channel's crossing from its old stream to its new one, in acts that may each be repeated."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from itertools import chain
from typing import Any, Final

import nats_bulk
from nats_bulk import Message, parse_headers
from tenantry import event
from tenantry.errors import BrokerError, BrokerUnreachable, TenantConflict
from tenantry.nats.connections import Broker, connect_bulk
from tenantry.nats.jetstream import Config, JetStream
from tenantry.tenants.door import copy_api, copy_delivery
from tenantry.tenants.lanes import NANOSECONDS, Lane
from tenantry.tenants.moves import LaneMove
from tenantry.tenants.streams import ensure_stream, require_ours


@dataclass(frozen=True, slots=True)
class Crossing:
    record: LaneMove
    origin: Lane
    target: Lane
    config: Config
    """The stream that the target is to be in the end."""
    here: JetStream
    """Where the old stream is."""
    there: JetStream
    """Where the new one is to be."""

    @property
    def _aside(self) -> str:
        """A subject that no producer has: a stream that listens to it is out of their way."""
        return self.target.prefix.replace(".tenants.", ".moves.", 1)

    @property
    def _id_subject(self) -> str:
        return f"{self._aside}.ids"

    async def start_copy(self, token: str) -> None:
        if await self.here.stream(self.origin.stream) is None:
            raise TenantConflict(
                f"stream {self.origin.stream} of tenant {self.origin.tenant} is missing; "
                "`tenantry tenant drift --repair` makes it again, or give up the move with --abandon"
            )
        # With a filter the server names it in the subject by which it asks, and only such subjects are let through.
        mirror: dict[str, Any] = {"name": self.origin.stream, "filter_subject": self.origin.subjects}
        if self.origin.account != self.target.account:
            mirror["external"] = {"api": copy_api(token), "deliver": copy_delivery(self.origin, token)}
        found = await self.there.stream(self.target.stream)
        if found is None:
            await self.there.create_stream(_filling(self.config) | {"mirror": mirror})
        else:
            require_ours(self.config, found["config"])

    async def progress(self) -> tuple[int, int]:
        """The newest sequence that was copied, and the newest that there is."""
        newest = await self.here.last_sequence(self.origin.stream, self.origin.subjects)
        found = await self.there.stream(self.target.stream)
        if found is None:
            raise BrokerError(f"stream {self.target.stream} has gone while it was being filled")
        if problem := (found.get("mirror") or {}).get("error"):
            raise BrokerError(f"stream {self.target.stream} cannot copy: {problem.get('description', problem)}")
        return int(found["state"]["last_seq"]), newest

    async def discard_copy(self) -> None:
        found = await self.there.stream(self.target.stream)
        if found is not None and found["config"].get("mirror"):
            await self.there.delete_stream(self.target.stream)

    async def close(self) -> None:
        """The old stream takes nothing more from producers. (A shared one is told by whoever keeps its list.)"""
        found = await self.here.stream(self.origin.stream)
        if found is not None and not self.origin.is_shared and found["config"]["subjects"] != [self._aside]:
            await self.here.update_stream(found["config"] | {"subjects": [self._aside]})

    async def take_over(self) -> None:
        """Make the copy, which has all by now, a stream in its own right; `record` says where it goes on."""
        found = await self.there.stream(self.target.stream)
        assert found is not None
        promoted = _filling(self.config) | {
            "subjects": [self._id_subject],
            "duplicate_window": self.config["duplicate_window"],
        }
        self.record.last = await self._end_of_origin()
        if found["config"].get("mirror"):
            await self.there.update_stream(promoted)
        elif found["config"]["subjects"] == self.config["subjects"]:
            raise TenantConflict(f"stream {self.target.stream} is open already; somebody else carries on this move")
        if found["state"]["messages"] == 0 and found["state"]["last_seq"] < self.record.last:
            # All events are gone. A new stream can begin behind the sequences that they had.
            await self.there.delete_stream(self.target.stream)
            await self.there.create_stream(promoted | {"first_seq": self.record.last + 1})
        await self._teach_ids()

    async def open(self) -> None:
        """The new stream takes what producers publish."""
        await ensure_stream(self.there, self.config)

    async def copy_consumers(self) -> None:
        """Each durable consumer goes on after the last event up to which it has acknowledged all."""
        prefix = self.origin.consumer_name("")
        async for consumer in self.here.consumers(self.origin.stream):
            config: Config = dict(consumer["config"])
            name = config.get("durable_name", "")
            if not name or (self.origin.is_shared and not name.startswith(prefix)):
                continue
            service = name.removeprefix(prefix) if self.origin.is_shared else name
            name = self.target.consumer_name(service)
            start = consumer["ack_floor"]["stream_seq"] + 1
            config |= {
                "name": name,
                "durable_name": name,
                "deliver_policy": "by_start_sequence",
                # In a shared stream it may have come past events of others that the new stream never had.
                "opt_start_seq": start if start <= self.record.last else self.record.resumes_at,
            }
            config.pop("opt_start_time", None)
            if self.origin.is_shared and config.get("filter_subject") == self.origin.subjects:
                config.pop("filter_subject")
            if await self.there.consumer(self.target.stream, name) is None:
                await self.there.create_consumer(self.target.stream, config)

    async def _end_of_origin(self) -> int:
        """The newest sequence of the lane; in a stream of its own, even if that event is gone."""
        if self.origin.is_shared:
            return await self.here.last_sequence(self.origin.stream, self.origin.subjects)
        found = await self.here.stream(self.origin.stream)
        return int(found["state"]["last_seq"]) if found else 0

    async def _teach_ids(self) -> None:
        """Let the new stream know the ids of recent events: a mirror does not learn them.

        Each id is published once more, to a subject that is then purged: the events go, their ids stay known. They use
        up sequences; so many more are used up as it takes to pass all that the old stream has used.
        """
        ids = await self._recent_ids()
        before = await self._last_there()
        fillers = range(before + len(ids), self.record.last)
        messages = chain(
            (Message(self._id_subject, b"", id) for id in ids),
            (Message(self._id_subject, b"", f"{self._id_subject}/{number}") for number in fillers),
        )
        if ids or fillers:
            await asyncio.to_thread(partial(_publish, self.target.broker, messages))
            await self.there.purge(self.target.stream, self._id_subject)
        self.record.resumes_at = await self._last_there() + 1

    async def _recent_ids(self) -> list[str]:
        if await self.here.stream(self.origin.stream) is None:
            return []
        window = timedelta(seconds=self.config["duplicate_window"] / NANOSECONDS)
        first = await self.here.sequence_at(self.origin.stream, event.now() - window)
        return await asyncio.to_thread(partial(_read_ids, self.origin, first, self.record.last))

    async def _last_there(self) -> int:
        found = await self.there.stream(self.target.stream)
        return int(found["state"]["last_seq"]) if found else 0


LISTENING: Final = ("subjects", "duplicate_window")


def _filling(config: Config) -> Config:
    """The stream while it is filled: it listens to no producer, and gives up nothing for want of room."""
    kept = {field: value for field, value in config.items() if field not in LISTENING}
    return kept | {"max_bytes": -1, "max_msgs": -1, "discard": "old", "allow_direct": False, "mirror_direct": False}


def _read_ids(origin: Lane, first: int, last: int) -> list[str]:
    if not 0 < first <= last:
        return []
    prefix = f"{origin.prefix}."
    ids: list[str] = []
    with _bulk(origin.broker) as connection:
        for batch in nats_bulk.read_range(connection, origin.stream, first, last):
            for subject, headers in zip(batch.subjects, batch.headers, strict=True):
                if headers and subject.startswith(prefix) and (id := parse_headers(headers).get("Nats-Msg-Id")):
                    ids.append(id[0])
    return ids


def _publish(broker: Broker, messages: Iterable[Message]) -> None:
    with _bulk(broker) as connection:
        nats_bulk.publish(connection, messages).raise_for_errors()


@contextmanager
def _bulk(broker: Broker) -> Iterator[nats_bulk.Connection]:
    try:
        with connect_bulk(broker, "tenantry-move") as connection:
            yield connection
    except nats_bulk.BulkError as problem:
        raise BrokerUnreachable(f"event ids could not be carried over: {problem}") from problem
