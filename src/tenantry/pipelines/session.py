"""A Spark session on this machine, on the Java that is found."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from pyspark.sql import SparkSession

from tenantry.embedded.java import find_java, spark_environment


def local_session(
    name: str, folder: Path, *, cores: int | None = None, config: Mapping[str, str] | None = None
) -> SparkSession:
    """Start Spark inside this process; `folder` keeps what it writes. One process has one session."""
    os.environ.update(spark_environment(find_java(), folder))
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.local.dir": str(folder / "spark"),
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.sql.session.timeZone": "UTC",
        **(config or {}),
    }
    builder = SparkSession.builder.appName(name).master(f"local[{cores or '*'}]")
    for key, value in settings.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()
