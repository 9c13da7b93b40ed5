"""Spark runs on the Java that is found, and on the bundled one that needs the shim."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import json, os, sys
from pathlib import Path
from tenantry.embedded.java import bundled_java, find_java, spark_environment

java = bundled_java() if sys.argv[1] == "bundled" else find_java()
os.environ.update(spark_environment(java, Path(sys.argv[2])))

from pyspark.sql import SparkSession

def double(batches):
    import pyarrow
    import pyarrow.compute
    for batch in batches:
        yield pyarrow.RecordBatch.from_arrays([pyarrow.compute.multiply(batch["id"], 2)], ["doubled"])

spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
total = spark.range(1000).mapInArrow(double, "doubled long").groupBy().sum("doubled").first()[0]
print(json.dumps({
    "spark": spark.version,
    "java": spark._jvm.java.lang.Runtime.version().feature(),
    "found": java.version,
    "shimmed": not java.has_vector_module,
    "total": total,
}))
spark.stop()
"""


@pytest.mark.parametrize("which", ["found", "bundled"])
def test_spark_runs_python_on_arrow_batches(tmp_path: Path, which: str) -> None:
    environment = {name: value for name, value in os.environ.items() if name not in ("JAVA_HOME", "SPARK_HOME")}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, which, tmp_path], capture_output=True, text=True, cwd=tmp_path, env=environment
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    assert result["spark"].startswith("4.3")
    assert result["java"] == result["found"] >= 17
    assert result["total"] == 999_000
    if which == "bundled":
        assert result["shimmed"]
        assert (tmp_path / "java" / "bin" / "java").exists()
