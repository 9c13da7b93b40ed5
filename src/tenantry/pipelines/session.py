"""The Spark session: on this machine on the Java that is found, or on a cluster, by configuration alone."""

from __future__ import annotations

import logging
import os
import shlex
import sys
import sysconfig
import tempfile
import zipfile
from collections.abc import Callable, Iterable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import pyspark
from pyspark import cloudpickle
from pyspark.sql import SparkSession

from tenantry.embedded.java import find_java, spark_environment
from tenantry.embedded.shim import write_shim
from tenantry.errors import ConfigError

SHIPPED: Final = ("nats_bulk", "pyspark_nats", "tenantry")
"""Packages that executors elsewhere get from us. What these import must be installed there."""

FOR_MANY_SMALL_BATCHES: Final = {
    # Queries of tenants that have one to themselves, and of each pipeline, get their turns at the cores.
    "spark.scheduler.mode": "FAIR",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "20000",
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    # Spark would keep each query's last hundred reports, and log a line for every one.
    "spark.sql.streaming.numRecentProgressUpdates": "5",
    "spark.sql.streaming.noDataMicroBatches.enabled": "true",
    "spark.cleaner.referenceTracking.cleanCheckpoints": "false",
    # The usual one runs a program, `readlink`, for each file that it looks at, and a JVM is slow to start programs.
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
    # What fails is told by the supervisor, with its cause first, and parked lanes are no errors of Spark's.
    "spark.log.level": "OFF",
}

# For each of its Python processes Spark puts its own sources, in an archive, before all else; out of that they
# are compiled anew every time, which is more than half of what a process needs to start. Here they are installed.
_PYTHON: Final = """\
#!/bin/sh
export PYTHONPATH="${PYTHONPATH#*/pyspark.zip:*/py4j-*-src.zip:}"
exec {program} "$@"
"""


def open_session(
    name: str,
    folder: Path,
    *,
    master: str = "local[*]",
    java: Path | None = None,
    config: Mapping[str, str] | None = None,
) -> SparkSession:
    """A session for pipelines; `folder` keeps what Spark writes. One process has one session."""
    if master.startswith("sc://"):
        raise ConfigError(
            "expected spark_master to be local[*], spark://… or k8s://…, got an address of Spark Connect: pipelines "
            "plan and commit their batches in the driver's process, which with Connect is somebody else's"
        )
    is_local = master.startswith("local")
    for logger in ("SQLQueryContextLogger", "py4j.clientserver"):
        logging.getLogger(logger).setLevel(logging.CRITICAL)
    settings = FOR_MANY_SMALL_BATCHES | {"spark.sql.shuffle.partitions": str(os.cpu_count() or 2)}
    if is_local:
        # Executors elsewhere get our packages too late for that.
        settings |= {"spark.python.daemon.module": "tenantry.pipelines.worker_daemon"}
    settings |= dict(config or {})
    session = _session(name, folder, master, settings, java, is_local=is_local)
    if not is_local:
        session.sparkContext.addPyFile(pack_packages(folder))
    return session


def local_session(
    name: str, folder: Path, *, cores: int | None = None, config: Mapping[str, str] | None = None
) -> SparkSession:
    """A plain session inside this process."""
    return _session(name, folder, f"local[{cores or '*'}]", config or {}, None, is_local=True)


def _session(
    name: str, folder: Path, master: str, config: Mapping[str, str], java: Path | None, *, is_local: bool
) -> SparkSession:
    environment = spark_environment(find_java(java), folder)
    if not is_local:
        # Executors elsewhere must be able to reach the driver.
        environment.pop("SPARK_LOCAL_IP")
    elif Path(pyspark.__file__).is_relative_to(sysconfig.get_path("purelib")):
        environment["PYSPARK_PYTHON"] = str(write_shim(folder / "bin" / "python", _PYTHON, Path(sys.executable)))
    os.environ.update(environment)
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.local.dir": str(folder / "spark"),
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.sql.session.timeZone": "UTC",
        **config,
    }
    # In a file, for what is given to a program in so many words everybody on the machine can read.
    properties = folder / "spark.properties"
    folder.mkdir(parents=True, exist_ok=True)
    properties.touch(mode=0o600)
    properties.write_text("".join(f"{key}={_escaped(value)}\n" for key, value in settings.items()))
    os.environ["PYSPARK_SUBMIT_ARGS"] = f"--properties-file {shlex.quote(str(properties))} pyspark-shell"
    try:
        return SparkSession.builder.appName(name).master(master).getOrCreate()
    finally:
        del os.environ["PYSPARK_SUBMIT_ARGS"]


def _escaped(value: str) -> str:
    """As Java reads a value in a file of properties."""
    return value.replace("\\", "\\\\").replace("\n", "\\n")


def ship_application(functions: Iterable[Callable[..., Any]]) -> None:
    """Send an application's own code along with its functions: tasks need not be able to import it."""
    for function in functions:
        root = sys.modules.get(function.__module__.partition(".")[0])
        if root is not None and root.__name__ not in (*SHIPPED, "__main__"):
            cloudpickle.register_pickle_by_value(root)  # type: ignore[no-untyped-call]


def pack_packages(folder: Path) -> str:
    """Our packages in an archive, for executors."""
    folder.mkdir(parents=True, exist_ok=True)
    archive = Path(tempfile.mkdtemp(dir=folder)) / "tenantry-packages.zip"
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as packed:
        for package in SHIPPED:
            spec = find_spec(package)
            assert spec is not None
            root = Path(str(spec.origin)).parent
            for file in sorted(root.rglob("*")):
                if file.is_file() and "__pycache__" not in file.parts:
                    packed.write(file, Path(package) / file.relative_to(root))
    return str(archive)
