"""A role of `tenantry up` in a process of its own, so that what it does holds up nothing else."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Final

from tenantry.cli.child_environment import child_command, child_environment
from tenantry.config import Settings
from tenantry.embedded.child import STOP_SECONDS, Child
from tenantry.embedded.platform import EmbeddedPlatform

PIPELINES: Final = "pipelines"
WORKERS: Final = "workers"


class RoleProcess:
    """A service. Its log is in the data directory."""

    def __init__(
        self, platform: EmbeddedPlatform, name: str, *arguments: str, stop_seconds: float = STOP_SECONDS
    ) -> None:
        self.name = name
        self._platform = platform
        self._arguments = arguments
        self._folder = platform.settings.data / name
        self.child = Child(name, self._folder, signal.SIGTERM, stop_seconds=stop_seconds)

    async def start(self) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        self.child.log.unlink(missing_ok=True)
        self.child.spawn(child_command(*self._arguments), child_environment(self._platform))

    async def run(self) -> None:
        await self.child.until_ended()

    async def stop(self) -> None:
        await self.child.stop()

    def kill(self) -> None:
        self.child.kill()


def pipeline_process(platform: EmbeddedPlatform) -> RoleProcess:
    """Spark's driver would slow down all others in this process."""
    return RoleProcess(platform, PIPELINES, "serve", "pipeline")


def fleet_process(platform: EmbeddedPlatform, most: int) -> RoleProcess:
    """Handlers are the application's: whatever they do, they do it elsewhere."""
    # Its workers drain first, and it after them.
    stop_seconds = STOP_SECONDS + platform.settings.worker_drain_seconds
    return RoleProcess(
        platform, WORKERS, "serve", "worker", "--min", "1", "--max", str(most), stop_seconds=stop_seconds
    )


def pipelines_folder(settings: Settings) -> Path:
    """Where pipelines keep what they write, unless settings say otherwise."""
    return settings.data / PIPELINES
