"""How a process that this one starts gets the same settings, and the servers that run here: through its environment.

A command line can be read by everybody on the machine; an environment cannot.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import msgspec
from pydantic import BaseModel, SecretStr

from tenantry.config import Settings, variables
from tenantry.embedded.platform import EmbeddedPlatform


def child_command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "tenantry", *arguments]


def child_environment(platform: EmbeddedPlatform) -> dict[str, str]:
    # The application is found where this process was started.
    paths = [str(Path.cwd()), os.environ.get("PYTHONPATH", "")]
    return (
        settings_environment(platform.settings)
        | platform.environment()
        | {"PYTHONPATH": os.pathsep.join(filter(None, paths))}
    )


def settings_environment(settings: Settings) -> dict[str, str]:
    """All that was set, wherever it was, as variables that say the same."""
    given = {name: getattr(settings, name) for name in sorted(settings.model_fields_set)}
    return {variables(name)[0]: _text(value) for name, value in given.items() if value is not None}


def _text(value: Any) -> str:
    if isinstance(value, SecretStr):
        return value.get_secret_value()
    if isinstance(value, str | Path):
        return str(value)
    if isinstance(value, tuple) and not any(isinstance(each, BaseModel) for each in value):
        return ",".join(map(str, value))
    if isinstance(value, tuple):
        value = [each.model_dump(mode="json", exclude_none=True) for each in value]
    return msgspec.json.encode(value).decode()
