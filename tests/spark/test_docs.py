"""What the page on Spark shows is run, and its tables are those of the code."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
from pathlib import Path

from pyspark_nats.catalog import checked, load_catalog
from pyspark_nats.options import READ_OPTIONS, WRITE_OPTIONS
from tenantry.embedded.java import find_java, spark_environment
from tenantry.nats import claims
from tenantry.nats.connections import Broker

PAGE = (Path(__file__).parents[2] / "docs" / "how-to" / "spark.md").read_text()


def test_the_page_lists_every_option() -> None:
    rows = re.findall(r"^\| `([a-z][\w.]*)` \| ([^|]*) \|$", PAGE, re.MULTILINE)
    written = {name: meaning for name, meaning in WRITE_OPTIONS.items() if not name.startswith("nats.")}
    assert [row for row in rows if row[0] in READ_OPTIONS] == list(READ_OPTIONS.items())
    assert [row for row in rows if row[0] in written and " " in row[1]][-len(written) :] == list(written.items())


async def test_the_example_does_what_it_says(account: Broker, tmp_path: Path) -> None:
    snippet, printed = re.findall(r"```(?:python)?\n(.*?)```", PAGE[PAGE.index("## Try it") :], re.DOTALL)[:2]
    creds = tmp_path / "user.creds"
    creds.write_text(claims.format_credentials(account.credentials))
    environment = (
        os.environ | spark_environment(find_java(), tmp_path) | {"NATS_URL": account.url, "NATS_CREDS": str(creds)}
    )
    done = await asyncio.to_thread(
        subprocess.run, [sys.executable, "-c", snippet], capture_output=True, text=True, env=environment, cwd=tmp_path
    )
    assert done.stdout == printed, done.stderr


def test_the_catalog_of_the_page_can_be_used(tmp_path: Path) -> None:
    (snippet,) = re.findall(r"```python\n(# tenants_catalog.py.*?)```", PAGE, re.DOTALL)
    (tmp_path / "tenants_catalog.py").write_text(snippet)
    sys.path.insert(0, str(tmp_path))
    try:
        streams = checked(load_catalog("tenants_catalog:Catalog", {})(), "tenants_catalog:Catalog")
    finally:
        sys.path.remove(str(tmp_path))
        sys.modules.pop("tenants_catalog", None)
    assert sorted(streams) == ["TENANT_ACME_EVENTS", "TENANT_ACME_PROPERTIES", "globex/events"]
    assert "short-lived" not in repr(streams)
