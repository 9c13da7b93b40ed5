"""`tenantry serve worker --min --max` as a process, and who is on the roll then."""

from __future__ import annotations

import os
import subprocess
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import psutil

from tenantry.nats.claims import format_credentials
from tenantry.subscriptions.roll_reader import Present, RollReader
from tenantry.tenants.administration import Administration
from tests.processes import PATIENCE, TENANTRY
from tests.subscriptions.working import until

OUTPUT = "fleet.out"
SHOP = """
import asyncio, sys
from tenantry.application import Context, Event, Tenantry

app = Tenantry("shop")
if "broke" in sys.argv:
    sys.exit("there is no licence for broke")


@app.subscriber("orders", types=["order.*"])
async def handle(event: Event[int], context: Context) -> None:
    await asyncio.sleep(0.05)
"""


class RunningFleet:
    def __init__(self, process: subprocess.Popen[bytes], output: Path, reader: RollReader) -> None:
        self.process = process
        self._output = output
        self._reader = reader

    @property
    def output(self) -> str:
        return self._output.read_text()

    @property
    def workers(self) -> list[psutil.Process]:
        """The processes that it has started and that still run."""
        found: list[psutil.Process] = []
        with suppress(psutil.NoSuchProcess):
            found = psutil.Process(self.process.pid).children()
        return found

    def present(self) -> list[Present]:
        return [each for each in self._reader.present() if not each.member.is_leaving]

    async def until_there(self, count: int) -> None:
        await self.until(lambda: len(self.present()) == len(self.workers) == count)

    async def until_started(self, count: int) -> None:
        await self.until(lambda: len(self.workers) == count)

    async def until(self, condition: Callable[[], bool]) -> None:
        """Fails with what the fleet has said, should it end before."""
        await until(lambda: condition() or self.process.poll() is not None, PATIENCE)
        assert self.process.poll() is None, self.output


def start_fleet(
    administration: Administration, folder: Path, *flags: str, **environment: str
) -> subprocess.Popen[bytes]:
    (folder / "shop.py").write_text(SHOP)
    platform = administration.lanes.platform
    given = {
        "NATS_URL": platform.url,
        "DATABASE_URL": str(administration.pool.conninfo),
        "TENANTRY_SECRET": "a secret that nobody else has",
        "TENANTRY_APP": "shop:app",
        "TENANTRY_WORKER_DRAIN_SECONDS": "2",
    }
    if platform.credentials.jwt:
        (folder / "platform.creds").write_text(format_credentials(platform.credentials))
        given["NATS_CREDS"] = str(folder / "platform.creds")
    with (folder / OUTPUT).open("wb") as output:
        return subprocess.Popen(
            [TENANTRY, "serve", "worker", *flags],
            cwd=folder,
            stdout=output,
            stderr=output,
            env=os.environ | given | environment,
        )


@asynccontextmanager
async def running_fleet(
    administration: Administration, folder: Path, *flags: str, **environment: str
) -> AsyncIterator[RunningFleet]:
    """A fleet of the application above, stopped at the end if it still runs."""
    reader = RollReader(administration.lanes.app, administration.lanes.platform)
    await reader.start()
    process = start_fleet(administration, folder, *flags, **environment)
    fleet = RunningFleet(process, folder / OUTPUT, reader)
    try:
        yield fleet
    finally:
        started = fleet.workers
        if process.poll() is None:
            process.terminate()
        try:
            process.wait(PATIENCE)
        finally:
            for each in (*started, process):
                with suppress(psutil.NoSuchProcess):
                    each.kill()
            await reader.stop()
