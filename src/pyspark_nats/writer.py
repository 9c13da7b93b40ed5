"""`df.write` and `df.writeStream`: rows are published in bulk, each partition by its task.

What is written again, by a task that is repeated or a batch after a restart, has the same ids, and the server adds
nothing for it within the duplicate window of the stream (two minutes unless configured). What was stored before a
failure stays.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator
from typing import Final
from uuid import uuid4

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from nats_bulk import BulkError, ConnectionLost, Message, PublishError, publish
from pyspark_nats.access import Access
from pyspark_nats.connections import CONNECTIONS
from pyspark_nats.errors import OptionInvalid, WriteFailed
from pyspark_nats.message_ids import MessageIds
from pyspark_nats.messages import Messages
from pyspark_nats.options import WriteOptions

# Longer than a stream needs to elect a leader.
PATIENCE: Final = 15.0
PAUSE: Final = 0.2

_QUERY_ID: Final = "sql.streaming.queryId"
_BATCH_ID: Final = "streaming.sql.batchId"


class NatsWriter(DataSourceArrowWriter):
    """A batch write. Its tasks may be repeated; the whole is a new one each time, unless it has a writeId."""

    def __init__(self, schema: StructType, options: WriteOptions, *, overwrite: bool) -> None:
        self._delivery = Delivery(schema, options, overwrite=overwrite)
        self._write_id = options.write_id or uuid4().hex

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        self._delivery.deliver(iterator, f"{self._write_id}.{_task().partitionId()}")
        return WriterCommitMessage()


class NatsStreamWriter(DataSourceStreamArrowWriter):
    """Made for each batch of a query, which Spark numbers and repeats under the same number."""

    def __init__(self, schema: StructType, options: WriteOptions, *, overwrite: bool) -> None:
        self._delivery = Delivery(schema, options, overwrite=overwrite)
        self._write_id = options.write_id

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        task = _task()
        query, batch = task.getLocalProperty(_QUERY_ID), task.getLocalProperty(_BATCH_ID)
        if not (query and batch):
            raise WriteFailed("expected Spark to tell a task its query and batch, which message ids are made of")
        self._delivery.deliver(iterator, f"{self._write_id or query}.{batch}.{task.partitionId()}")
        return WriterCommitMessage()


class Delivery:
    """Made on the driver, with the credentials as they are now, so that executors need no file."""

    def __init__(self, schema: StructType, options: WriteOptions, *, overwrite: bool) -> None:
        if overwrite:
            raise OptionInvalid(
                "a stream cannot be overwritten, for messages are only added: use mode append, or outputMode append"
            )
        self._messages = Messages(schema, options.subject)
        access = options.access.resolve()
        assert access is not None, "nats.url is required of writers"
        self._access: Access = access

    def deliver(self, batches: Iterable[pa.RecordBatch], id_prefix: str) -> None:
        """One Arrow batch after the other, which Spark keeps below 10,000 rows and 64 MB."""
        ids = MessageIds(id_prefix)
        for batch in batches:
            self._store(self._messages.of(batch, ids))

    def _store(self, messages: list[Message]) -> None:
        """All of them. What is sent again is stored once, so whatever may pass is waited for."""
        count = len(messages)
        deadline = time.monotonic() + PATIENCE
        while errors := self._publish(messages):
            first = min(errors)
            final = min((place for place, error in errors.items() if not _may_pass(error)), default=None)
            if final is None and errors[first].code == 503 and self._nobody_takes(messages[first].subject):
                final = first
            if final is not None or time.monotonic() > deadline:
                shown = first if final is None else final
                raise WriteFailed(
                    f"{len(errors)} of {count} rows of a batch were not stored; one of them, to "
                    f"{messages[shown].subject!r}: {errors[shown].description}"
                )
            messages = [messages[place] for place in sorted(errors)]
            time.sleep(PAUSE)

    def _publish(self, messages: list[Message]) -> dict[int, PublishError]:
        try:
            return publish(CONNECTIONS.use(self._access), messages).errors
        except ConnectionLost as lost:
            return dict.fromkeys(range(len(messages)), PublishError(503, 0, str(lost)))

    def _nobody_takes(self, subject: str) -> bool:
        """Whether no stream is meant to take it. One that has no leader just now still is."""
        question = json.dumps({"subject": subject}).encode()
        try:
            connection = CONNECTIONS.use(self._access)
            answer = json.loads(connection.request(f"{self._access.api_prefix}.STREAM.NAMES", question))
        except BulkError:
            return False  # nor can everybody ask
        return "error" not in answer and not answer.get("streams")


def _may_pass(error: PublishError) -> bool:
    return error.code != 502 and (not error.certain or error.code in (429, 503))


def _task() -> TaskContext:
    task = TaskContext.get()
    assert task is not None, "writers write in tasks"
    return task
