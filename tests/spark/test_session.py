"""The session that pipelines run on."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyspark

from tenantry.pipelines.lane_reader import LaneReader
from tenantry.pipelines.switchboard import Switchboard

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_it_has_the_name_that_it_was_given(spark: SparkSession) -> None:
    assert spark.sparkContext.appName == "tests"


def test_processes_of_tasks_begin_with_all_that_they_import(spark: SparkSession) -> None:
    def look(_: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import gc
        import sys

        known = sys.modules.get("tenantry.pipelines.warehouse")
        is_looked_through = any(each is known for each in gc.get_objects())
        yield pa.RecordBatch.from_pylist([{"is_loaded": known is not None, "is_looked_through": is_looked_through}])

    (row,) = spark.range(1).coalesce(1).mapInArrow(look, "is_loaded boolean, is_looked_through boolean").collect()
    assert row.asDict() == {"is_loaded": True, "is_looked_through": False}


def test_processes_of_spark_import_what_is_installed_and_compiled(spark: SparkSession) -> None:
    def look(_: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import sys

        import pyspark

        yield pa.RecordBatch.from_pylist([{"place": pyspark.__file__, "path": sys.path}])

    (row,) = spark.range(1).coalesce(1).mapInArrow(look, "place string, path array<string>").collect()
    assert row.place == pyspark.__file__
    assert any("spark-core" in each for each in row.path), "the rest of what Spark adds is still there"


def test_no_two_queries_share_what_spark_writes_to_when_they_start(spark: SparkSession) -> None:
    """Spark's streaming runner puts variables into the map of the data source's function, unguarded."""
    switchboard = Switchboard()
    reader = LaneReader(spark, switchboard)
    try:
        maps = set()
        for query in ("one", "two"):
            reader.stream(query, list, most=1)
            source = spark._jsparkSession.sessionState().dataSourceManager().lookupDataSource("nats")
            jvm: Any = spark._jvm
            maps.add(jvm.System.identityHashCode(source.dataSourceCls().envVars()))
    finally:
        switchboard.close()
    assert len(maps) == 2
