"""Tenants whose events are handled, and endpoints that they are pushed to."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tenantry.tenants.administration import Administration
from tenantry.tenants.spec import TenantSpec
from tests.subscriptions.letters import Letters
from tests.subscriptions.receiver import Receiver, receiving
from tests.subscriptions.working import Working


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    async with receiving() as running:
        yield running


@pytest.fixture
def working(administration: Administration) -> Working:
    return Working(administration)


@pytest.fixture
async def letters(administration: Administration) -> Letters:
    """Of two tenants and a service."""
    for tenant in ("acme", "globex"):
        await administration.put(TenantSpec(id=tenant, tier="pooled"), "test")
    letters = Letters(str(administration.pool.conninfo))
    letters.serve("invoices")
    return letters
