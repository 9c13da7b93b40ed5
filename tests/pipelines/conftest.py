"""Tenants, a place for a projection's documents, and pipelines that run on the worker's Spark."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tenantry.pipelines.task_database import close_idle
from tenantry.tenants.administration import Administration
from tenantry.tenants.spec import TenantSpec
from tests.pipelines.place import Place

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.pipelines.running import Running

TENANTS = ("acme", "globex", "initech")


@pytest.fixture
async def place(administration: Administration) -> AsyncIterator[Place]:
    for tenant in TENANTS:
        await administration.put(TenantSpec(id=tenant, tier="pooled"), "test")
    yield Place(str(administration.pool.conninfo))
    close_idle()


@pytest.fixture
async def running(administration: Administration, spark: SparkSession, tmp_path: Path) -> AsyncIterator[Running]:
    from tenantry.config import Settings
    from tests.pipelines.running import Running

    folder = tmp_path / "pipelines"
    yield Running(administration, spark, folder, Settings(table_seconds=0.1, lake=str(folder / "lake")))
    close_idle()
