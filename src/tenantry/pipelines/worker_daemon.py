"""Makes the processes that tasks run in: what these import is imported once, before the first of them is made.

Spark starts it with `spark.python.daemon.module`. Its own leaves imports to each process, a second's work every time: a
library might start threads, which a fork does not take along. Of ours only the allocators of Arrow and delta-rs do, for
housekeeping, and jemalloc knows how to go on without.
"""

from __future__ import annotations

import gc
import importlib
from typing import Final

from pyspark import daemon

NEEDED: Final = (
    "pyspark.worker",
    "pandas",
    "pyarrow.parquet",
    "pyspark.sql.pandas.serializers",
    "pyspark_nats.stream_reader",
    "tenantry.pipelines.folding",
    "tenantry.pipelines.warehouse",
)

if __name__ == "__main__":
    for module in NEEDED:
        importlib.import_module(module)
    # After each task Spark collects garbage, which would look through all of this.
    gc.freeze()
    daemon.manager()
