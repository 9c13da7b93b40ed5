"""What Spark finds under the name `nats`."""

from __future__ import annotations

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from pyspark_nats.batch_reader import NatsReader
from pyspark_nats.errors import OptionInvalid
from pyspark_nats.options import ReadOptions, WriteOptions
from pyspark_nats.rows import schema
from pyspark_nats.stream_reader import NatsStreamReader
from pyspark_nats.writer import NatsStreamWriter, NatsWriter


class NatsDataSource(DataSource):
    """NATS JetStream streams as DataFrames, and DataFrames into streams."""

    @classmethod
    def name(cls) -> str:
        return "nats"

    def schema(self) -> StructType:
        return schema(include_headers=ReadOptions.parse(self.options, streaming=False).include_headers)

    def reader(self, schema: StructType) -> DataSourceReader:
        options = ReadOptions.parse(self.options, streaming=False)
        _require(schema, options)
        return NatsReader(options)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        options = ReadOptions.parse(self.options, streaming=True)
        _require(schema, options)
        return NatsStreamReader(options)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        return NatsWriter(schema, WriteOptions.parse(self.options), overwrite=overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        return NatsStreamWriter(schema, WriteOptions.parse(self.options), overwrite=overwrite)


def _require(given: StructType, options: ReadOptions) -> None:
    expected = schema(include_headers=options.include_headers)
    if given != expected:
        raise OptionInvalid(
            f"expected the schema to be {expected.simpleString()}, got: {given.simpleString()}; leave out schema(…)"
        )
