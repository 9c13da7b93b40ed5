"""What the page on tables shows is run, and prints what it says."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest

from tenantry.embedded.java import find_java, spark_environment
from tests.pipelines.own_lake import ROWS, OwnLake, numbered

PAGE = (Path(__file__).parents[2] / "docs" / "how-to" / "tables.md").read_text()
TYPES = ("order.created", "order.paid")


@pytest.mark.parametrize("reader", ["DuckDB", "Polars", "Spark"])
def test_a_table_opens_as_the_page_says(reader: str, tmp_path: Path) -> None:
    section = PAGE[PAGE.index(f"## {reader}") :]
    snippet, printed = re.findall(r"```(?:python)?\n(.*?)```", section, re.DOTALL)[:2]
    lake = OwnLake(str(tmp_path / "lake"))
    schema = ROWS.append(pa.field("type", pa.string()))
    for start in (0, 5, 15):
        rows = [numbered(number) | {"type": TYPES[number % 2]} for number in range(20) if start <= number]
        lake.append(lake.place("acme"), rows[: 10 if start == 5 else 5], schema)
    environment = os.environ | spark_environment(find_java(), tmp_path)
    done = subprocess.run(
        [sys.executable, "-c", snippet], capture_output=True, text=True, env=environment, cwd=tmp_path
    )
    assert done.stdout == printed, done.stderr
