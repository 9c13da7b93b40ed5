"""The pipelines of `tenantry up`, in a process of their own: Spark's driver would slow down all others in this one."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Final

from tenantry.config import ENV_PREFIX, Settings
from tenantry.embedded.child import Child
from tenantry.embedded.platform import EmbeddedPlatform

FOLDER: Final = "pipelines"


class PipelineProcess:
    """A service."""

    name = "pipelines"

    def __init__(self, platform: EmbeddedPlatform) -> None:
        self._platform = platform
        self.folder = pipelines_folder(platform.settings)
        self.child = Child(self.name, self.folder, signal.SIGTERM)

    async def start(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self.child.log.unlink(missing_ok=True)
        self.child.spawn([sys.executable, "-m", "tenantry", "serve", "pipeline"], self._environment())

    async def run(self) -> None:
        await self.child.until_ended()

    async def stop(self) -> None:
        await self.child.stop()

    def kill(self) -> None:
        self.child.kill()

    def _environment(self) -> dict[str, str]:
        """The settings as they are here, and the servers that run here."""
        settings = self._platform.settings
        given = settings.model_dump(mode="json", exclude_none=True, include=set(_PASSED))
        variables = {f"{ENV_PREFIX}{name.upper()}": _text(value) for name, value in given.items()}
        if settings.lake_options:
            variables["TENANTRY_LAKE_OPTIONS"] = settings.lake_options.get_secret_value()
        # The application is found where `up` was started.
        paths = [str(Path.cwd()), os.environ.get("PYTHONPATH", "")]
        return variables | self._platform.environment() | {"PYTHONPATH": os.pathsep.join(filter(None, paths))}


_PASSED: Final = (
    "namespace",
    "app",
    "data",
    "lake",
    "spark_master",
    "spark_config",
    "checkpoints",
    "pipeline_batch",
    "projection_batch",
    "table_seconds",
    "pipeline_restart_seconds",
    "database_pool",
    "nats_replicas",
    "pool_lanes",
    "log_level",
    "log_format",
    "java_home",
    "nats_tls_ca",
    "nats_tls_cert",
    "nats_tls_key",
)


def pipelines_folder(settings: Settings) -> Path:
    """Where pipelines keep what they write, unless settings say otherwise."""
    return settings.data / FOLDER


def _text(value: object) -> str:
    import msgspec

    return value if isinstance(value, str) else msgspec.json.encode(value).decode()
