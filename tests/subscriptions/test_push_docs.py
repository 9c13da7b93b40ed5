"""The receiver that the page shows is run, and takes what we deliver."""

from __future__ import annotations

import asyncio
import os
import re
import sys
from pathlib import Path

import pytest

from tenantry.errors import PushFailed
from tenantry.subscriptions.push_delivery import Deliverer
from tenantry.subscriptions.push_secrets import PushSecrets
from tests.subscriptions.receiver import KEYRING, LOOPBACK
from tests.subscriptions.test_push_delivery import endpoint, later

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "webhooks.md"


async def test_the_receiver_of_the_page_verifies_and_takes_each_event_once() -> None:
    (snippet,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    secrets, orders = PushSecrets(KEYRING), endpoint("")
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        snippet,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        env=dict(os.environ, SECRET=secrets.current(orders), PORT="0"),
    )
    assert process.stdout is not None
    try:
        port = (await process.stdout.readline()).decode().split()[-1]
        orders = later(orders, url=f"http://127.0.0.1:{port}/hook")
        async with Deliverer(secrets, LOOPBACK) as deliverer:
            for id in ("1", "1", "2"):
                document = f'{{"specversion":"1.0","id":"{id}","source":"s","type":"order.created"}}'
                assert (await deliverer.deliver(orders, id, document.encode())).status == 204
            with pytest.raises(PushFailed, match="answered 401"):
                await deliverer.deliver(later(orders, secret_version=2), "3", b"{}")
        lines = [(await process.stdout.readline()).decode() for _ in range(2)]
        assert lines == ["received order.created 1\n", "received order.created 2\n"]
    finally:
        process.kill()
        await process.wait()
