"""Workers of a platform that runs, and the commands about them."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import psutil

from tests.processes import Up, run_tenantry, wait_for

SHOP = """
from tenantry.application import Context, Event, Tenantry

app = Tenantry("shop")


@app.subscriber("orders", types=["order.*"])
async def handle(event: Event[int], context: Context) -> None:
    pass
"""


def test_up_runs_the_workers_of_an_application_and_those_that_are_asked_for(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(SHOP)
    paths = os.pathsep.join(filter(None, [str(tmp_path), os.environ.get("PYTHONPATH", "")]))

    def command(*arguments: str) -> Any:
        done = run_tenantry(*arguments, "--data", up.data, "--json")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def there_for() -> list[list[str]]:
        return sorted(each["tenants"] for each in command("worker", "list")["workers"] if not each["is_leaving"])

    with Up(tmp_path / "data", "--app", "shop:app", "--workers", "2", env={"PYTHONPATH": paths}) as up:
        up.until_ready()
        log = up.data / "workers" / "server.log"
        assert f"Workers   starting, for the application's subscribers  (log: {log})" in up.output
        command("tenant", "create", "acme")
        wait_for(lambda: there_for() == [[]])
        job = command("worker", "start", "--tenant", "acme")
        wait_for(lambda: there_for() == [[], ["acme"]])
        wait_for(lambda: [each["state"] for each in command("worker", "list")["jobs"]] == ["running"])
        shown = run_tenantry("worker", "list", "--data", up.data).stdout
        assert job["id"][:8] in shown
        assert "acme" in shown
        stopped = command("worker", "stop", job["id"][:8])
        assert stopped["state"] == "stopping"
        wait_for(lambda: there_for() == [[]])
        assert "subscriptions.job_taken" in log.read_text()
        started = psutil.Process(up.process.pid).children(recursive=True)
        assert up.stop() == 0, up.output
        assert not any(each.is_running() for each in started)
