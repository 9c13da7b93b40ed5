"""One typed object for every setting: flag > environment > tenantry.toml > default.

The environment has a `TENANTRY_` name for each, and the names everyone uses (`NATS_URL`, `DATABASE_URL`, `PG*`, …).
"""

from __future__ import annotations

import difflib
import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import msgspec
from pydantic import AliasChoices, SecretStr, ValidationError
from pydantic_settings import TomlConfigSettingsSource

from tenantry.errors import ConfigError
from tenantry.settings import ENV_PREFIX as ENV_PREFIX
from tenantry.settings import Settings as Settings
from tenantry.settings import StaticAccount as StaticAccount

FILE_NAME: Final = "tenantry.toml"
FILE_VARIABLE: Final = "TENANTRY_CONFIG"
HIDDEN: Final = "********"

_SCHEME: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*")
_SECRET_KEY: Final = re.compile(r"secret|password|token|access[._]?key", re.IGNORECASE)
"""What Spark itself hides in its pages and logs, see spark.redaction.regex."""


@dataclass(frozen=True, slots=True)
class Configuration:
    """The settings and where each of them came from."""

    settings: Settings
    origins: Mapping[str, str]
    unknown_variables: tuple[str, ...] = ()
    """Variables that start with TENANTRY_ and set nothing: most likely misspelt."""

    def rows(self) -> list[tuple[str, str, str]]:
        """Name, value with secrets hidden, and origin of each setting."""
        return [
            (name, _shown(getattr(self.settings, name)), self.origins[name])
            for name in type(self.settings).model_fields
        ]


@dataclass(slots=True)
class _Source:
    origin: str
    values: dict[str, Any]
    variables: dict[str, str] = field(default_factory=dict)


def load(flags: Mapping[str, Any] | None = None, file: Path | None = None) -> Configuration:
    """Read all the sources; ConfigError says which setting is wrong, where it came from, and where it can be set."""
    file = file or _file_to_read()
    sources = [
        _Source("flag", {name: value for name, value in (flags or {}).items() if value is not None}),
        _environment(),
        *([_toml(file)] if file else []),
    ]
    values: dict[str, Any] = {}
    origins: dict[str, str] = {}
    for name in Settings.model_fields:
        origins[name] = "default"
        for source in sources:
            if name in source.values:
                values[name] = source.values[name]
                origins[name] = source.variables.get(name, source.origin)
                break
    try:
        settings = Settings(**values)
    except ValidationError as problem:
        raise ConfigError(_explain(problem, origins)) from None
    return Configuration(settings, origins, _unknown_variables())


def _file_to_read() -> Path | None:
    if named := os.environ.get(FILE_VARIABLE):
        return Path(named)
    beside = Path(FILE_NAME)
    return beside if beside.is_file() else None


def _environment() -> _Source:
    source = _Source("environment", {})
    for name in Settings.model_fields:
        # An empty variable is as good as none.
        if given := [variable for variable in variables(name) if os.environ.get(variable)]:
            source.values[name] = os.environ[given[0]]
            source.variables[name] = f"environment {given[0]}"
    # libpq reads these and their companions itself when the address leaves them open.
    given = [variable for variable in ("PGHOST", "PGSERVICE") if os.environ.get(variable)]
    if given and "database_url" not in source.values:
        source.values["database_url"] = "postgresql://"
        source.variables["database_url"] = f"environment {given[0]}"
    return source


def _toml(file: Path) -> _Source:
    try:
        found = TomlConfigSettingsSource(Settings, file)() if file.is_file() else None
    except (tomllib.TOMLDecodeError, OSError) as problem:
        raise ConfigError(f"cannot read {file}: {problem}") from None
    if found is None:
        raise ConfigError(f"expected the configuration file {file} to exist; check --config or {FILE_VARIABLE}")
    values = {key.removeprefix(ENV_PREFIX).lower() if key.isupper() else key: value for key, value in found.items()}
    for key, value in values.items():
        if isinstance(value, dict):
            instead = f'{key} = \'{{"name": "value"}}\'' if key in Settings.model_fields else f"{key}_url = … and such"
            raise ConfigError(f"{file} has a table [{key}], and settings are flat: write {instead}")
        if key not in Settings.model_fields:
            raise ConfigError(f"{file} has a setting that does not exist: {key}{_suggestion(key)}")
    return _Source(f"file {file}", values)


def variables(name: str) -> list[str]:
    """The environment variables of a setting, the strongest first."""
    alias = Settings.model_fields[name].validation_alias
    return [str(each) for each in alias.choices] if isinstance(alias, AliasChoices) else [ENV_PREFIX + name.upper()]


def _unknown_variables() -> tuple[str, ...]:
    known = {variable for name in Settings.model_fields for variable in variables(name)} | {FILE_VARIABLE}
    return tuple(sorted(each for each in os.environ if each.startswith(ENV_PREFIX) and each not in known))


def _explain(problem: ValidationError, origins: Mapping[str, str]) -> str:
    lines = []
    for error in problem.errors():
        name = str(error["loc"][0]).removeprefix(ENV_PREFIX).lower()
        origin = origins.get(name, "flag")
        problem_text = error["msg"].removeprefix("Value error, ")
        if not _is_secret(name) and "got: " not in problem_text:
            problem_text += f", got: {error['input']!r}"
        lines.append(
            f"{name}: {problem_text} (from {origin}). It can be set by --{name.replace('_', '-')}, "
            f"{', '.join(variables(name))}, or {name} in {FILE_NAME}"
        )
    return "\n".join(lines)


def _suggestion(key: str) -> str:
    close = difflib.get_close_matches(key, Settings.model_fields, n=1)
    return f"; did you mean {close[0]}?" if close else f"; there are: {', '.join(Settings.model_fields)}"


def _is_secret(name: str) -> bool:
    if name not in Settings.model_fields:
        return False
    field = Settings.model_fields[name]
    return not field.repr or "SecretStr" in str(field.annotation)


def _shown(value: Any) -> str:
    if isinstance(value, SecretStr):
        return without_secrets(value.get_secret_value())
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict):
        hidden = {key: HIDDEN if _SECRET_KEY.search(key) else each for key, each in value.items()}
        return msgspec.json.encode(hidden).decode() if hidden else ""
    if isinstance(value, tuple) and not any(isinstance(each, StaticAccount) for each in value):
        return ",".join(map(str, value))
    text = "" if value in (None, ()) else str(value)
    return without_secrets(text) if "://" in text and "@" in text else text


def without_secrets(text: str) -> str:
    """An address keeps what tells where it leads; anything else is hidden whole."""
    text = text.strip()
    if text.lower().startswith(("nats://", "tls://")):
        return ",".join(_nats_place(part) for part in text.split(","))
    scheme, separator, rest = text.partition("://")
    if not separator or not _SCHEME.fullmatch(scheme):
        return HIDDEN
    userinfo, at, place = rest.rpartition("@")
    user, colon, _ = userinfo.partition(":")
    # Options may hold a password too.
    return f"{scheme}://{user}{':' + HIDDEN if colon else ''}{at}{re.split('[?#]', place)[0]}"


def _nats_place(part: str) -> str:
    """All before the @ is hidden: a lone word there is a token."""
    scheme, _, rest = part.strip().rpartition("://")
    _, at, place = rest.rpartition("@")
    return f"{scheme or 'nats'}://{HIDDEN + '@' if at else ''}{place}"
