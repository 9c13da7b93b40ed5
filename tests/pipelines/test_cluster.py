"""The same pipelines on a standalone cluster of two workers, by configuration alone."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.pipelines.storm import Storm
from tests.spark.cluster import Cluster

pytestmark = [pytest.mark.xdist_group("spark-cluster"), pytest.mark.timeout(900)]

SMALL = {
    "spark.cores.max": "2",
    "spark.executor.cores": "1",
    "spark.executor.memory": "512m",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.memory": "512m",
}


async def test_every_event_is_once_in_its_table_and_document_when_an_executor_is_killed(
    cluster: Cluster, tmp_path: Path
) -> None:
    settings = {"TENANTRY_SPARK_MASTER": cluster.url, "TENANTRY_SPARK_CONFIG": json.dumps(SMALL)}
    async with Storm.brewing(tmp_path, **settings) as storm:
        storm.start_driver()
        await storm.until_more("customers")
        cluster.executors()[0].kill()
        await storm.until_more("customers")
        await storm.until_more("warehouse")
        await storm.calm()
        await storm.assert_each_event_once()
