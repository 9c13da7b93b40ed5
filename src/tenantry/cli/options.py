"""Flags that many commands share."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from tenantry.config import Configuration, load


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Options:
    """Settings that can be given as flags; what is left out comes from the environment, the file or the default."""

    config: Annotated[Path | None, Parameter(help="Configuration file; tenantry.toml here, if there is one.")] = None
    data: Annotated[Path | None, Parameter(help="Directory of the embedded servers.")] = None
    nats_url: Annotated[str | None, Parameter(help="NATS to use instead of the embedded one.")] = None
    nats_creds: Annotated[Path | None, Parameter(help="Credentials file for it.")] = None
    database_url: Annotated[str | None, Parameter(help="PostgreSQL to use instead of the embedded one.")] = None
    log_level: Annotated[str | None, Parameter(help="debug, info, warning or error.")] = None

    def load(self, **more: Any) -> Configuration:
        flags = {name: getattr(self, name) for name in self.__dataclass_fields__ if name != "config"}
        return load(flags | more, self.config)


DEFAULT = Options()
