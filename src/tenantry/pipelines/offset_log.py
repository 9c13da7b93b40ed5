"""What each batch of a query reads, as Spark has written it down in the checkpoint before it began."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import url2pathname

from pyspark.sql import SparkSession

from pyspark_nats.offsets import Offset

Ranges = dict[str, tuple[int, int]]


class OffsetLog:
    def __init__(self, spark: SparkSession, checkpoint: str) -> None:
        self._spark = spark
        self._folder = f"{checkpoint}/offsets"
        self._done = f"{checkpoint}/commits"

    def ranges(self, batch: int) -> Ranges:
        """First and last sequence of what a batch reads, by key."""
        before = self._offset(batch - 1) if batch else Offset()
        return self._offset(batch).ranges_since(before)

    def unfinished(self) -> Ranges:
        """What the last batch reads, if it was begun and not finished."""
        planned, done = (self._newest(folder) for folder in (self._folder, self._done))
        return self.ranges(planned) if planned is not None and planned != done else {}

    def _newest(self, folder: str) -> int | None:
        numbers = [int(name) for name in self._names(folder) if name.isdigit()]
        return max(numbers, default=None)

    def _names(self, folder: str) -> list[str]:
        address = urlsplit(folder)
        if address.scheme in ("", "file"):
            path = Path(url2pathname(address.path))
            return [each.name for each in path.iterdir()] if path.is_dir() else []
        path, filesystem = self._hadoop(folder)
        return [each.getPath().getName() for each in filesystem.listStatus(path)] if filesystem.exists(path) else []

    def _hadoop(self, place: str) -> tuple[Any, Any]:
        jvm: Any = self._spark._jvm
        path = jvm.org.apache.hadoop.fs.Path(place)
        return path, path.getFileSystem(self._spark._jsc.hadoopConfiguration())

    def _offset(self, batch: int) -> Offset:
        # A version, what Spark knows of the batch, and then a line for each source.
        return Offset.parse(json.loads(self._text(f"{self._folder}/{batch}").splitlines()[2]))

    def _text(self, place: str) -> str:
        address = urlsplit(place)
        if address.scheme in ("", "file"):
            return Path(url2pathname(address.path)).read_text()
        path, filesystem = self._hadoop(place)
        stream = filesystem.open(path)
        try:
            jvm: Any = self._spark._jvm
            return str(jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8"))
        finally:
            stream.close()
