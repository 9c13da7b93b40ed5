"""What the pages about the API show is run, and is true."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
from pathlib import Path

from tenantry.api.tokens import ASYMMETRIC
from tenantry.tenants.principal import SCOPES, TENANT_SCOPES
from tests.api.conftest import StartApi
from tests.api.test_webhook import SECRET

DOCS = Path(__file__).parents[2] / "docs"


async def test_the_how_to_does_what_it_says(start_api: StartApi, tmp_path: Path) -> None:
    api = await start_api(webhook_secret=SECRET)
    _, key = await api.keys.create("test", name="admin", scopes=["*"])
    blocks = re.findall(r"```sh\n(.*?)```", (DOCS / "how-to" / "http-api.md").read_text(), re.DOTALL)
    # The blocks that export say where the API is, and are for people.
    script = "set -eo pipefail\n" + "\n".join(block for block in blocks if not block.startswith("export"))
    environment = dict(os.environ, API=api.server.url, KEY=key, TENANTRY_WEBHOOK_SECRET=SECRET)
    done = await asyncio.to_thread(
        subprocess.run, ["bash", "-c", script], capture_output=True, text=True, env=environment, cwd=tmp_path
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.endswith('{"status":"handled"}')
    assert "BEGIN NATS USER JWT" in (tmp_path / "acme.creds").read_text()
    assert [each.id for each in await api.administration.registry.page()] == ["globex"]


async def test_the_page_on_ingest_does_what_it_says(start_api: StartApi, tmp_path: Path) -> None:
    api = await start_api()
    _, key = await api.keys.create("test", name="admin", scopes=["*"])
    blocks = re.findall(r"```sh\n(.*?)```", (DOCS / "how-to" / "ingest.md").read_text(), re.DOTALL)
    done = await asyncio.to_thread(
        subprocess.run,
        ["bash", "-c", "set -eo pipefail\n" + "\n".join(blocks)],
        capture_output=True,
        text=True,
        env=dict(os.environ, API=api.server.url, KEY=key),
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert '{"accepted":1,"duplicates":0,"spooled":0,"ids":["order-7"]}' in done.stdout
    assert '"spooled":0,"ids":["order-8","order-9"]}' in done.stdout
    for channel, stored in (("events", 5), ("properties", 1)):
        lane = await api.administration.lanes.resolve("acme", channel)
        assert await api.administration.backbone.platform.last_sequence(lane.stream, lane.subjects) == stored


def test_the_reference_lists_every_scope() -> None:
    page = (DOCS / "reference" / "access.md").read_text()
    rows = re.findall(r"^\| `([\w:*-]+)` \| (.+?) \| (.+?) \|$", page, re.MULTILINE)
    assert {scope: meaning for scope, meaning, _ in rows} == SCOPES
    assert {scope for scope, _, bound in rows if bound == "its own"} == TENANT_SCOPES
    assert all(f"{family}256" in page for family in ("RS", "PS", "ES"))
    assert "EdDSA" in ASYMMETRIC
