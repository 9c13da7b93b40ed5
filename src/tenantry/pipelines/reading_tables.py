"""Opens a table of the lake in Spark, without a Delta package: delta-rs says which files it has, and Spark reads them.

For Spark that sees the lake as files: on this machine, or through a file system that all of its machines share.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote

from deltalake import DeltaTable

from tenantry.errors import TableMismatch
from tenantry.pipelines.lake import is_local

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PLAIN_FEATURES: Final = frozenset({"timestampNtz"})
"""With these, the rows are what the files hold."""


def read_table(spark: SparkSession, location: str, storage_options: Mapping[str, str] | None = None) -> DataFrame:
    """The table as it is now; columns that older files lack are null in their rows."""
    from pyspark.sql.types import StructType

    table = DeltaTable(location, storage_options=dict(storage_options) if storage_options else None)
    protocol = table.protocol()
    foreign = set(protocol.reader_features or ()) - PLAIN_FEATURES
    if foreign or protocol.min_reader_version == 2:
        raise TableMismatch(
            f"the files of the table {location} are not its rows as they are: it uses "
            f"{', '.join(sorted(foreign)) or 'column mapping'}; open it with Spark's own Delta package"
        )
    schema = StructType.fromJson(json.loads(table.schema().to_json()))
    files = table.file_uris()
    if is_local(location):
        # delta-rs writes paths as addresses, with %20 for a space.
        files = [unquote(file) for file in files]
    return spark.read.schema(schema).parquet(*files) if files else spark.createDataFrame([], schema)
