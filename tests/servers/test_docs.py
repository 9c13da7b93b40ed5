"""What the pages show is run, and prints what they say."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
from pathlib import Path

from tenantry.cli.limits import format_limits
from tenantry.nats import claims
from tenantry.nats.connections import Broker
from tenantry.postgres.migrations import Migrations
from tenantry.postgres.pool import connect
from tenantry.tenants.administration import Administration
from tenantry.tenants.plans import SHIPPED, Limits
from tenantry.tenants.spec import TenantSpec

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


async def test_the_page_of_tenants_shows_how_to_publish_and_read(
    administration: Administration, tmp_path: Path
) -> None:
    page = (DOCS / "how-to" / "tenants.md").read_text()
    (snippet,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    for tier in ("stream", "account"):
        await administration.put(TenantSpec(id="acme", tier=tier), "test")
        _, secret = await administration.credentials.issue("acme", "test", consumer="billing")
        (tmp_path / "acme.creds").write_text(claims.format_credentials(secret))
        environment = dict(os.environ, NATS_URL=administration.lanes.platform.url)
        done = await asyncio.to_thread(
            subprocess.run,
            [sys.executable, "-c", snippet],
            capture_output=True,
            text=True,
            env=environment,
            cwd=tmp_path,
        )
        assert done.stdout == 'stored and read back: {"order": 7}\nfetched: {"order": 7}\n', done.stderr
        await administration.delete("acme", "test")


async def test_the_page_of_emitting_emits(database: str) -> None:
    async with connect(database, autocommit=True) as connection:
        await Migrations(outbox_only=True).apply(connection)
        await connection.execute("create table orders (number integer primary key)")
        for channel in ("events", "properties"):
            lane = "insert into tenantry.outbox_lanes (tenant_id, channel, payload) values ('acme', %s, 10000)"
            await connection.execute(lane, [channel])
        page = (DOCS / "how-to" / "emit.md").read_text()
        for language, snippet in re.findall(r"```(sql|python)\n(.*?)```", page, re.DOTALL):
            if language == "sql":
                await connection.execute(snippet)
                continue
            environment = dict(os.environ, DATABASE_URL=database)
            done = await asyncio.to_thread(
                subprocess.run, [sys.executable, "-c", snippet], capture_output=True, text=True, env=environment
            )
            assert done.returncode == 0, done.stderr
        told = await connection.execute("select document::json #>> '{data,order}' from tenantry.outbox order by id")
        written = await connection.execute("select number from orders order by number")
        assert [row[0] for row in await told.fetchall()] == ["7"] * 4 + ["8", "9", "10", "11", "12"]
        assert [row[0] for row in await written.fetchall()] == [7, 8, 9, 10, 11]


def test_the_page_of_limits_lists_every_limit_with_the_shipped_values() -> None:
    page = (DOCS / "reference" / "limits.md").read_text()
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in page.splitlines() if line.startswith("| `")
    ]
    assert [row[0].strip("`") for row in rows] == list(Limits.__struct_fields__)
    shown = {row[0].strip("`"): row[2:] for row in rows}
    for place, plan in enumerate(SHIPPED):
        for limit, text in format_limits(plan.limits).items():
            name, _, channel = limit.partition(".")
            assert text in shown[name][place].replace("all ", ""), (plan.name, limit, channel)
