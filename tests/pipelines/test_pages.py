"""The application that the page on pipelines shows is run."""

from __future__ import annotations

import re
from pathlib import Path

from tenantry.application import load_application
from tests.pipelines.running import Running, event

PAGE = (Path(__file__).parents[2] / "docs" / "how-to" / "pipelines.md").read_text()


async def test_the_application_of_the_page_does_what_the_page_says(running: Running, tmp_path: Path) -> None:
    blocks = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    source = "\n".join(["from pyspark.sql import functions as F", *blocks])
    (tmp_path / "shop_of_the_page.py").write_text(source)
    application = load_application("shop_of_the_page:app", tmp_path)
    assert set(application.pipelines) == {"orders", "minutes"}
    await running.tenant("umbrella")
    await running.publish(
        "umbrella", [event(number, order=number, customer="ann", total=10 * number) for number in (1, 2, 3)]
    )
    async with running.pipelines(application):
        for pipeline in ("warehouse", "orders", "customers", "minutes"):
            await running.until_at(pipeline, "umbrella", 3)
    assert [(row["number"], row["total"]) for row in running.rows("umbrella", "orders")] == [(1, 10), (2, 20), (3, 30)]
    assert await running.documents("umbrella", "customers") == {"ann": {"orders": 3, "total": 60}}
