"""A pipeline that keeps state: Spark keeps it, by query, so a batch is committed by its number.

Its rows come from events of several batches and have no sequence. All tenants are in one query, for state cannot be
handed from one query to another.
"""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import to_arrow_schema

from tenantry.application import Pipeline
from tenantry.pipelines.assignment import Assignment
from tenantry.pipelines.keys import LaneName
from tenantry.pipelines.progress import Done
from tenantry.pipelines.table_files import WRITTEN_DDL, FileWriter
from tenantry.pipelines.tables import File, Mark, Tables
from tenantry.pipelines.transforming import TABLE_COLUMN
from tenantry.tenants.tenant import Tenant


class StatefulTables:
    """Takes the rows of each batch, as the streaming query gives them."""

    def __init__(self, pipeline: Pipeline, tables: Tables, assignment: Assignment) -> None:
        self._pipeline = pipeline
        self._tables = tables
        self._assignment = assignment

    def __call__(
        self, rows: DataFrame, number: int, query: str, ends: Mapping[LaneName, int], tenants: Mapping[str, Tenant]
    ) -> None:
        """`ends` says how far each lane was read; `query` is Spark's own id, another one for each new checkpoint."""
        locations = self._tables.claim((tenant, self._pipeline.table) for tenant in tenants.values())
        schema = to_arrow_schema(rows.schema, timezone="UTC")
        writer = FileWriter(self._tables.lake, locations, TABLE_COLUMN, (TABLE_COLUMN,))
        named = rows.withColumn(TABLE_COLUMN, F.lit(self._pipeline.table))
        written = named.mapInArrow(writer, WRITTEN_DDL).collect()
        files: dict[str, list[File]] = {}
        stored: dict[str, Done] = {}
        for row in written:
            files.setdefault(row.tenant, []).append(File(row.file, row.size, row.rows, row.statistics))
            before = stored.get(row.tenant, Done(0))
            stored[row.tenant] = Done(
                0,
                before.events + row.rows,
                before.bytes + row.bytes,
                before.stored + row.size,
                before.seconds + row.seconds,
            )
        # Versions are counted from one, for nought is what a table says that knows of none.
        mark = Mark(f"{self._pipeline.name}/{query}", number + 1)
        self._tables.commit_all(
            (locations[tenant, self._pipeline.table], schema, added, mark) for tenant, added in files.items()
        )
        self._assignment.advanced(
            {lane: stored.get(lane.tenant, Done(0))._replace(sequence=last) for lane, last in ends.items()}
        )
