"""Flags that many commands share: every setting is one."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Group, Parameter

from tenantry.config import Configuration, Settings, load

SETTINGS = Group(
    "Settings", sort_key=9, help="What is left out comes from the environment, tenantry.toml or the default."
)


def _about(setting: str) -> Parameter:
    return Parameter(help=Settings.model_fields[setting].description)


@Parameter(name="*", group=SETTINGS)
@dataclass(frozen=True, kw_only=True)
class Options:
    """The settings as flags. Values stay as they were typed: the settings check them, wherever they come from."""

    config: Annotated[Path | None, Parameter(help="configuration file; ./tenantry.toml, if it exists")] = None
    app: Annotated[str | None, _about("app")] = None
    data: Annotated[str | None, _about("data")] = None
    nats_url: Annotated[str | None, _about("nats_url")] = None
    nats_creds: Annotated[str | None, _about("nats_creds")] = None
    nats_token: Annotated[str | None, _about("nats_token")] = None
    nats_tls_ca: Annotated[str | None, _about("nats_tls_ca")] = None
    nats_tls_cert: Annotated[str | None, _about("nats_tls_cert")] = None
    nats_tls_key: Annotated[str | None, _about("nats_tls_key")] = None
    nats_port: Annotated[int | None, _about("nats_port")] = None
    database_url: Annotated[str | None, _about("database_url")] = None
    database_pool: Annotated[int | None, _about("database_pool")] = None
    postgres_port: Annotated[int | None, _about("postgres_port")] = None
    java_home: Annotated[str | None, _about("java_home")] = None
    log_level: Annotated[str | None, _about("log_level")] = None
    log_format: Annotated[str | None, _about("log_format")] = None

    def load(self) -> Configuration:
        flags: dict[str, Any] = {field.name: getattr(self, field.name) for field in fields(self)}
        return load(flags, flags.pop("config"))


DEFAULT = Options()
