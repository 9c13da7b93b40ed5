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
from ipaddress import IPv4Network, IPv6Network, ip_network
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import msgspec
from pydantic import AliasChoices, BaseModel, ConfigDict, Field, SecretStr, ValidationError, field_validator
from pydantic_settings import (
    BaseSettings,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    TomlConfigSettingsSource,
)

from nats_bulk import parse_addresses
from tenantry.errors import ConfigError
from tenantry.event import APP_PATTERN, is_name

ENV_PREFIX: Final = "TENANTRY_"
FILE_NAME: Final = "tenantry.toml"
FILE_VARIABLE: Final = "TENANTRY_CONFIG"
HIDDEN: Final = "********"

Port = Annotated[int, Field(ge=0, le=65535)]

_ATTRIBUTE_OF_MODULE: Final = re.compile(r"[^\W\d]\w*(?:\.[^\W\d]\w*)*:[^\W\d]\w*")
_SCHEME: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*")
_SECRET_KEY: Final = re.compile(r"secret|password|token|access[._]?key", re.IGNORECASE)
"""What Spark itself hides in its pages and logs, see spark.redaction.regex."""


def _also(*variables: str) -> AliasChoices:
    """Take the setting from these variables too, after its TENANTRY_ one, which the first of them is made into."""
    return AliasChoices(ENV_PREFIX + variables[0], *variables)


def _default_data() -> Path:
    home = Path.home()
    if os.geteuid() == 0 and home.is_dir() and not home.stat().st_mode & 0o001:
        # The user as whom root runs PostgreSQL could not walk through a home that is closed to others.
        return Path("/var/lib/tenantry")
    return Path(os.environ.get("XDG_DATA_HOME") or home / ".local" / "share") / "tenantry"


class StaticAccount(BaseModel):
    """A stream and a consumer that somebody else provisioned, named in the configuration instead of a folder."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    stream: str
    consumer: str
    tenant_id: str
    creds: Path | None = None


class Settings(BaseSettings):
    """The settings, with their defaults and meanings."""

    model_config = SettingsConfigDict(
        env_prefix=ENV_PREFIX, env_ignore_empty=True, extra="forbid", frozen=True, populate_by_name=True
    )

    namespace: str = Field("tenantry", description="first token of every subject")
    app: str | None = Field(None, description="the application, as module:attribute, like shop:app")
    data: Path = Field(default_factory=_default_data, description="where the embedded servers keep their data")
    nats_url: SecretStr | None = Field(
        None, validation_alias=_also("NATS_URL"), description="servers, comma separated; none: the embedded server"
    )
    nats_creds: Path | None = Field(None, validation_alias=_also("NATS_CREDS"), description=".creds file for NATS")
    nats_token: SecretStr | None = Field(None, validation_alias=_also("NATS_TOKEN"), description="token for NATS")
    nats_tls_ca: Path | None = Field(None, description="certificate authorities to trust for NATS, PEM")
    nats_tls_cert: Path | None = Field(None, description="client certificate for NATS, PEM")
    nats_tls_key: Path | None = Field(None, description="key of the client certificate, PEM")
    nats_port: Port | None = Field(None, description="port of the embedded NATS; 0: choose a new one")
    nats_leaf_port: Port | None = Field(
        None, description="port on which the embedded NATS takes leaf nodes; 0: choose a new one; none: it takes none"
    )
    nats_system_creds: Path | None = Field(
        None, description=".creds of a user of the system account, for operator mode on your own servers"
    )
    nats_operator_key: Path | None = Field(
        None, description="file with a signing seed of the operator, for operator mode on your own servers"
    )
    nats_account_key: Path | None = Field(
        None,
        description="file with the seed of the platform's account, which signs short-lived users that only read; "
        "none: the embedded server's, else Spark reads with nats_creds",
    )
    nats_replicas: int = Field(1, ge=1, le=5, description="replicas that the cluster can hold; plans ask for no more")
    database_url: SecretStr | None = Field(
        None, validation_alias=_also("DATABASE_URL"), description="PostgreSQL; none: the embedded server"
    )
    database_pool: int = Field(10, ge=1, le=1000, description="connections to PostgreSQL, at most")
    postgres_port: Port | None = Field(None, description="port of the embedded PostgreSQL; 0: choose a new one")
    outbox_url: SecretStr | None = Field(
        None, description="PostgreSQL that has the outbox, if that is an application's own; none: the platform's"
    )
    outbox_keep: int = Field(
        86_400, ge=600, description="seconds that published events stay in the outbox, well past the broker's fsync"
    )
    outbox_attempts: int = Field(
        8, ge=1, le=100, description="attempts after which an event that no stream takes goes to the dead letters"
    )
    outbox_stall_seconds: int = Field(
        30, ge=1, description="age from which a transaction that holds back events is reported"
    )
    secret: SecretStr | None = Field(
        None, description="master secret that tenants' keys are derived from; none: kept in the data directory"
    )
    asset_budget: int = Field(2000, ge=0, description="replicated streams and consumers that the cluster may hold")
    pool_lanes: int = Field(100, ge=1, le=5000, description="lanes that share one stream of the pooled tier, at most")
    provisioning_parallel: int = Field(16, ge=1, le=256, description="tenants that are provisioned side by side")
    accounts_directory: Path | None = Field(None, description="folder of accounts that others provision, watched")
    accounts: tuple[StaticAccount, ...] = Field(
        (),
        description="accounts that others provision, as JSON or [[accounts]]: name, stream, consumer, tenant_id, creds",
    )
    api_host: str = Field("127.0.0.1", description="address on which the HTTP API listens")
    api_port: Port | None = Field(None, description="port of the HTTP API; 0: choose a new one")
    jwt_keys_url: str | None = Field(None, description="JWKS document that holds the keys for JWTs")
    jwt_secret: SecretStr | None = Field(None, description="shared key for JWTs (HS256), instead of a JWKS")
    jwt_issuer: str | None = Field(None, description="issuer that JWTs must name")
    jwt_audience: str | None = Field(None, description="audience that JWTs must name")
    jwt_tenant_claim: str = Field("tenant", description="claim of a JWT that names its tenant")
    jwt_scope_claim: str = Field("scope", description="claim of a JWT that lists its scopes")
    webhook_secret: SecretStr | None = Field(None, description="secret (whsec_…) of the provisioning webhook")
    push_allowed_networks: tuple[IPv4Network | IPv6Network, ...] = Field(
        (),
        description="networks that events may be pushed to although they are not public, also without TLS: "
        "10.0.0.0/8 and such, comma separated",
    )
    pipelines: bool = Field(True, description="whether `tenantry up` runs the pipelines")
    lake: str | None = Field(
        None, description="where tables are kept, a folder or s3://bucket/prefix; none: in the data directory"
    )
    lake_options: SecretStr | None = Field(
        None, description="options of the object store, as JSON: AWS_ENDPOINT_URL, AWS_ACCESS_KEY_ID and such"
    )
    spark_master: str = Field("local[*]", description="where Spark runs: local[*], spark://host:7077, k8s://…")
    spark_config: dict[str, str] = Field({}, repr=False, description="settings of Spark, as JSON")
    checkpoints: str | None = Field(
        None,
        description="where Spark keeps how far queries are, a folder or an address that Spark can write to; "
        "none: in the data directory",
    )
    pipeline_batch: int = Field(50_000, ge=1, description="events in one micro-batch, at most")
    projection_batch: int = Field(
        10_000, ge=1, description="events that projections take in one micro-batch, at most; small, to be soon done"
    )
    table_seconds: float = Field(2.0, gt=0, le=3600, description="how often tables are written, in seconds")
    pipeline_restart_seconds: float = Field(
        1.0,
        gt=0,
        allow_inf_nan=False,
        description="how long a failed query waits before it is started again, at first",
    )
    worker_slots: int = Field(200, ge=1, le=100_000, description="async handlers that a worker runs at once")
    worker_threads: int = Field(16, ge=1, le=1000, description="plain handlers that a worker runs at once")
    worker_drain_seconds: float = Field(
        20.0, ge=0, le=3600, description="how long handlers may go on when their worker stops or gives a tenant away"
    )
    worker_tenants: tuple[str, ...] = Field(
        (),
        validation_alias=AliasChoices("TENANTRY_WORKER_TENANTS", "TENANTRY_TENANT"),
        description="tenants that a worker is there for, separated by commas; all, if left out",
    )
    worker_plans: tuple[str, ...] = Field(
        (), description="plans that a worker is there for, separated by commas; all, if left out"
    )
    once_keep: int = Field(30 * 86_400, ge=3600, description="how long `context.once` remembers an event, in seconds")
    java_home: Path | None = Field(None, validation_alias=_also("JAVA_HOME"), description="Java 17 or newer for Spark")
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        "info", description="debug, info, warning or error: the least that is logged"
    )
    log_format: Literal["auto", "console", "json"] = Field(
        "auto", description="auto, console or json; auto is console on a terminal, else json"
    )

    @field_validator("namespace")
    @classmethod
    def _namespace_fits_a_subject(cls, value: str) -> str:
        if not is_name("app", value):
            raise ValueError(f"expected namespace to match {APP_PATTERN}, got: {value[:80]!r}")
        return value

    @field_validator("app")
    @classmethod
    def _app_names_an_attribute(cls, value: str | None) -> str | None:
        if value is not None and not _ATTRIBUTE_OF_MODULE.fullmatch(value):
            raise ValueError(
                f"expected app to be package.module:attribute, like shop:app, got: {value[:80]!r}. "
                "If the first token of subjects is meant, that is now `namespace`"
            )
        return value

    @field_validator("nats_url")
    @classmethod
    def _nats_url_is_one(cls, value: SecretStr | None) -> SecretStr | None:
        if value:
            parse_addresses(value.get_secret_value())
        return value

    @field_validator("accounts", mode="before")
    @classmethod
    def _accounts_from_text(cls, value: Any) -> Any:
        if not isinstance(value, str):
            return value
        try:
            return msgspec.json.decode(value)
        except msgspec.DecodeError as problem:
            raise ValueError(f"expected a JSON list of accounts: {problem}") from None

    @field_validator("push_allowed_networks", mode="before")
    @classmethod
    def _networks_from_text(cls, value: Any) -> Any:
        texts = value.split(",") if isinstance(value, str) else value
        try:
            return tuple(ip_network(str(each).strip()) for each in texts if str(each).strip())
        except ValueError as problem:
            raise ValueError(f"expected networks like 10.0.0.0/8, with commas between them: {problem}") from None

    @field_validator("worker_tenants", "worker_plans", mode="before")
    @classmethod
    def _names_from_text(cls, value: Any) -> Any:
        names = [each.strip() for each in value.split(",")] if isinstance(value, str) else value
        for each in names:
            if each and not is_name("tenant", each):
                raise ValueError(f"expected names with commas between them, got: {str(each)[:80]!r}")
        return tuple(each for each in names if each)

    @field_validator("lake_options")
    @classmethod
    def _lake_options_are_texts(cls, value: SecretStr | None) -> SecretStr | None:
        if value:
            _read_texts(value.get_secret_value())
        return value

    @field_validator("spark_config", mode="before")
    @classmethod
    def _spark_config_from_text(cls, value: Any) -> Any:
        return _read_texts(value) if isinstance(value, str) else value

    @field_validator("lake", "checkpoints")
    @classmethod
    def _folder_or_address(cls, value: str | None) -> str | None:
        if value is None or "://" in value:
            return value
        if not value:
            raise ValueError("expected a folder or an address")
        return str(Path(value).expanduser().absolute())

    @field_validator(
        "data",
        "nats_creds",
        "nats_system_creds",
        "nats_operator_key",
        "nats_account_key",
        "nats_tls_ca",
        "nats_tls_cert",
        "nats_tls_key",
        "accounts_directory",
        "java_home",
    )
    @classmethod
    def _expand_home(cls, value: Path | None) -> Path | None:
        return value.expanduser().absolute() if value else value

    @classmethod
    def settings_customise_sources(  # type: ignore[override]
        cls, _: type[BaseSettings], init_settings: PydanticBaseSettingsSource, **__: Any
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """`load` reads the sources itself, to know which one each value came from."""
        return (init_settings,)


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


def _read_texts(text: str) -> dict[str, str]:
    try:
        return msgspec.json.decode(text, type=dict[str, str])
    except msgspec.DecodeError as problem:
        raise ValueError(f"expected a JSON object of strings: {problem}") from None


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
    if isinstance(value, tuple) and any(isinstance(each, IPv4Network | IPv6Network) for each in value):
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
