"""Tenants, and a place for a projection's documents. What needs Spark is in `tests/spark`."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tenantry.pipelines.task_database import close_idle
from tenantry.tenants.administration import Administration
from tenantry.tenants.spec import TenantSpec
from tests.pipelines.place import Place

TENANTS = ("acme", "globex", "initech")


@pytest.fixture
async def place(administration: Administration) -> AsyncIterator[Place]:
    for tenant in TENANTS:
        await administration.put(TenantSpec(id=tenant, tier="pooled"), "test")
    yield Place(str(administration.pool.conninfo))
    close_idle()
