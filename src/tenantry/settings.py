"""Every setting, with its default, its meaning, and what it may be."""

from __future__ import annotations

import os
import re
from ipaddress import IPv4Network, IPv6Network, ip_network
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import msgspec
from pydantic import AliasChoices, BaseModel, ConfigDict, Field, SecretStr, field_validator
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from nats_bulk import parse_addresses
from tenantry.event import APP_PATTERN, is_name

ENV_PREFIX: Final = "TENANTRY_"

Port = Annotated[int, Field(ge=0, le=65535)]

_ATTRIBUTE_OF_MODULE: Final = re.compile(r"[^\W\d]\w*(?:\.[^\W\d]\w*)*:[^\W\d]\w*")


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


def _read_texts(text: str) -> dict[str, str]:
    try:
        return msgspec.json.decode(text, type=dict[str, str])
    except msgspec.DecodeError as problem:
        raise ValueError(f"expected a JSON object of strings: {problem}") from None
