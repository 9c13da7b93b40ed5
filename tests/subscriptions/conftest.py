"""Endpoints and what they lead to."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.subscriptions.receiver import Receiver, receiving


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    async with receiving() as running:
        yield running
