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

    def ranges(self, batch: int) -> Ranges:
        """First and last sequence of what a batch reads, by key."""
        before = self._offset(batch - 1) if batch else Offset()
        return self._offset(batch).ranges_since(before)

    def _offset(self, batch: int) -> Offset:
        # A version, what Spark knows of the batch, and then a line for each source.
        return Offset.parse(json.loads(self._text(f"{self._folder}/{batch}").splitlines()[2]))

    def _text(self, place: str) -> str:
        address = urlsplit(place)
        if address.scheme in ("", "file"):
            return Path(url2pathname(address.path)).read_text()
        jvm: Any = self._spark._jvm
        path = jvm.org.apache.hadoop.fs.Path(place)
        stream = path.getFileSystem(self._spark._jsc.hadoopConfiguration()).open(path)
        try:
            return str(jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8"))
        finally:
            stream.close()
