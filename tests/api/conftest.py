"""The API as its users meet it: a real server on a port of its own, in front of the real servers."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from tenantry.api.app import build_app
from tenantry.api.server import ApiServer
from tenantry.api.tokens import Tokens
from tenantry.config import Settings
from tenantry.tenants.administration import Administration
from tenantry.tenants.api_keys import ApiKeys


@dataclass
class Api:
    """An API that runs, and ways to ask it."""

    administration: Administration
    keys: ApiKeys
    server: ApiServer
    stack: AsyncExitStack

    async def client(self, *scopes: str, tenant: str | None = None) -> httpx.AsyncClient:
        """Somebody with a key of these scopes."""
        _, text = await self.keys.create("test", name="test", scopes=scopes, tenant=tenant)
        return await self.bearer(text)

    async def bearer(self, text: str) -> httpx.AsyncClient:
        return await self.anybody(Authorization=f"Bearer {text}")

    async def anybody(self, **headers: str) -> httpx.AsyncClient:
        client = httpx.AsyncClient(base_url=self.server.url, headers=headers, timeout=60)
        return await self.stack.enter_async_context(client)


StartApi = Callable[..., Awaitable[Api]]


@pytest.fixture
async def start_api(administration: Administration) -> AsyncIterator[StartApi]:
    async with AsyncExitStack() as stack:

        async def start(tokens: Tokens | None = None, **settings: Any) -> Api:
            chosen = Settings(**settings)
            keys = administration.keys
            app = build_app(administration, keys=keys, tokens=tokens or Tokens.from_settings(chosen), settings=chosen)
            server = ApiServer(app, chosen.api_host, 0)
            await server.start()
            stack.push_async_callback(server.stop)
            return Api(administration, keys, server, stack)

        yield start


@pytest.fixture
async def api(start_api: StartApi) -> Api:
    return await start_api()


@pytest.fixture
async def admin(api: Api) -> httpx.AsyncClient:
    """Somebody who may do everything."""
    return await api.client("*")
