"""One platform for all tests of commands about events."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tenantry.cli.session import use_administration
from tenantry.config import Settings
from tenantry.nats.connections import connect
from tests.conftest import open_to_others
from tests.processes import TENANTRY, Up, run_tenantry, wait_for

TIERS = {"acme": "stream", "pooled": "pooled", "sharing": "pooled", "own": "account"}


class Platform:
    """A shell in which a platform is known that runs."""

    def __init__(self, up: Up) -> None:
        self.up = up
        self.settings = Settings(data=up.data)

    @property
    def database_url(self) -> str:
        return self.up.environment["DATABASE_URL"]

    def run(self, *arguments: str | Path, status: int = 0, input: str | None = None) -> str:
        """What a command prints: its result, or, if it is to fail, what it says about that."""
        done = run_tenantry(*arguments, "--data", self.up.data, input=input)
        assert done.returncode == status, done.stdout + done.stderr
        assert "Traceback" not in done.stderr
        return done.stderr if status else done.stdout

    def json(self, *arguments: str | Path, input: str | None = None) -> Any:
        return json.loads(self.run(*arguments, "--json", input=input))

    def until_published(self, tenant: str, id: str) -> dict[str, Any]:
        """Wait until the relay has carried an event; what the outbox says of it then."""
        found: list[dict[str, Any]] = []

        def is_published() -> bool:
            rows = self.json("outbox", "events", tenant, "--state", "published", "--limit", "1000")
            found[:] = [row for row in rows if row["id"] == id]
            return bool(found)

        wait_for(is_published)
        return found[0]

    async def publish(self, tenant: str, type: str, payload: bytes = b"{}", channel: str = "events") -> int:
        """Past the outbox; the sequence that it got."""
        async with use_administration(self.settings) as administration:
            lane = await administration.lanes.resolve(tenant, channel)
        async with connect(lane.broker, "test") as client:
            return (await client.jetstream().publish(f"{lane.prefix}.{type}", payload)).seq


@pytest.fixture(scope="session")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Platform]:
    folder = tmp_path_factory.mktemp("events")
    open_to_others(folder)
    with Up(folder / "data") as up:
        up.until_ready()
        shell = Platform(up)
        lines = [{"id": id, "tier": tier, "channels": {"events": None, "orders": None}} for id, tier in TIERS.items()]
        shell.run("tenant", "create", "--file", "-", input="\n".join(map(json.dumps, lines)))
        yield shell


class Following:
    """`tenantry tail` in the background."""

    def __init__(self, platform: Platform, folder: Path, *arguments: str) -> None:
        self._out, self._said = folder / "tail.out", folder / "tail.err"
        with self._out.open("w") as out, self._said.open("w") as said:
            command: list[str | Path] = [TENANTRY, "tail", *arguments, "--data", platform.up.data]
            self.process = subprocess.Popen(command, stdout=out, stderr=said)
        wait_for(lambda: "Following" in self._said.read_text() or self.process.poll() is not None)
        assert self.process.poll() is None or "Following" in self._said.read_text(), self._said.read_text()

    @property
    def lines(self) -> list[str]:
        return self._out.read_text().splitlines()

    def until(self, count: int) -> list[str]:
        """So many lines, once they are there."""
        wait_for(lambda: len(self.lines) >= count or self.process.poll() is not None)
        assert len(self.lines) == count, self.lines + self._said.read_text().splitlines()
        return self.lines

    def __enter__(self) -> Following:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
