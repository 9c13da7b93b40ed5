"""Tenants whose events are handled, and endpoints that they are pushed to."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tenantry.tenants.administration import Administration
from tests.subscriptions.receiver import Receiver, receiving
from tests.subscriptions.working import Working


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    async with receiving() as running:
        yield running


@pytest.fixture
def working(administration: Administration) -> Working:
    return Working(administration)
