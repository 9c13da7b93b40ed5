"""A relay in the test's own process, on the shared servers."""

from __future__ import annotations

import pytest

from tenantry.tenants.administration import Administration
from tests.outbox.carrying import Carrying


@pytest.fixture
async def carrying(administration: Administration) -> Carrying:
    """Tenants that no other test has; `async with carrying.relay()` carries for them."""
    return Carrying(administration)
