"""What the pages show is run, and prints what they say."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
from pathlib import Path

from tenantry.nats import claims
from tenantry.nats.connections import Broker

DOCS = Path(__file__).parents[2] / "docs"


async def test_the_bulk_page_does_what_it_says(account: Broker, tmp_path: Path) -> None:
    page = (DOCS / "how-to" / "bulk.md").read_text()
    snippet, printed = re.findall(r"```(?:python)?\n(.*?)```", page, re.DOTALL)[:2]
    creds = tmp_path / "user.creds"
    creds.write_text(claims.format_credentials(account.credentials))
    environment = dict(os.environ, NATS_URL=account.url, NATS_CREDS=str(creds))
    done = await asyncio.to_thread(
        subprocess.run, [sys.executable, "-c", snippet], capture_output=True, text=True, env=environment
    )
    assert done.stdout == printed, done.stderr
