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


def _about(setting: str, negative: str = "") -> Parameter:
    return Parameter(help=Settings.model_fields[setting].description, negative=negative)


@Parameter(name="*", group=SETTINGS)
@dataclass(frozen=True, kw_only=True)
class Options:
    """The settings as flags. Values stay as they were typed: the settings check them, wherever they come from."""

    config: Annotated[Path | None, Parameter(help="configuration file; ./tenantry.toml, if it exists")] = None
    namespace: Annotated[str | None, _about("namespace")] = None
    app: Annotated[str | None, _about("app")] = None
    data: Annotated[str | None, _about("data")] = None
    nats_url: Annotated[str | None, _about("nats_url")] = None
    nats_creds: Annotated[str | None, _about("nats_creds")] = None
    nats_token: Annotated[str | None, _about("nats_token")] = None
    nats_tls_ca: Annotated[str | None, _about("nats_tls_ca")] = None
    nats_tls_cert: Annotated[str | None, _about("nats_tls_cert")] = None
    nats_tls_key: Annotated[str | None, _about("nats_tls_key")] = None
    nats_port: Annotated[int | None, _about("nats_port")] = None
    nats_leaf_port: Annotated[int | None, _about("nats_leaf_port")] = None
    nats_system_creds: Annotated[str | None, _about("nats_system_creds")] = None
    nats_operator_key: Annotated[str | None, _about("nats_operator_key")] = None
    nats_account_key: Annotated[str | None, _about("nats_account_key")] = None
    nats_replicas: Annotated[int | None, _about("nats_replicas")] = None
    database_url: Annotated[str | None, _about("database_url")] = None
    database_pool: Annotated[int | None, _about("database_pool")] = None
    postgres_port: Annotated[int | None, _about("postgres_port")] = None
    outbox_url: Annotated[str | None, _about("outbox_url")] = None
    outbox_keep: Annotated[int | None, _about("outbox_keep")] = None
    outbox_attempts: Annotated[int | None, _about("outbox_attempts")] = None
    outbox_stall_seconds: Annotated[int | None, _about("outbox_stall_seconds")] = None
    secret: Annotated[str | None, _about("secret")] = None
    asset_budget: Annotated[int | None, _about("asset_budget")] = None
    pool_lanes: Annotated[int | None, _about("pool_lanes")] = None
    provisioning_parallel: Annotated[int | None, _about("provisioning_parallel")] = None
    accounts_directory: Annotated[str | None, _about("accounts_directory")] = None
    accounts: Annotated[str | None, _about("accounts")] = None
    api_host: Annotated[str | None, _about("api_host")] = None
    api_port: Annotated[int | None, _about("api_port")] = None
    jwt_keys_url: Annotated[str | None, _about("jwt_keys_url")] = None
    jwt_secret: Annotated[str | None, _about("jwt_secret")] = None
    jwt_issuer: Annotated[str | None, _about("jwt_issuer")] = None
    jwt_audience: Annotated[str | None, _about("jwt_audience")] = None
    jwt_tenant_claim: Annotated[str | None, _about("jwt_tenant_claim")] = None
    jwt_scope_claim: Annotated[str | None, _about("jwt_scope_claim")] = None
    webhook_secret: Annotated[str | None, _about("webhook_secret")] = None
    push_allowed_networks: Annotated[str | None, _about("push_allowed_networks")] = None
    pipelines: Annotated[bool | None, _about("pipelines", negative="--no-pipelines")] = None
    lake: Annotated[str | None, _about("lake")] = None
    lake_options: Annotated[str | None, _about("lake_options")] = None
    spark_master: Annotated[str | None, _about("spark_master")] = None
    spark_config: Annotated[str | None, _about("spark_config")] = None
    checkpoints: Annotated[str | None, _about("checkpoints")] = None
    pipeline_batch: Annotated[int | None, _about("pipeline_batch")] = None
    projection_batch: Annotated[int | None, _about("projection_batch")] = None
    table_seconds: Annotated[float | None, _about("table_seconds")] = None
    pipeline_restart_seconds: Annotated[float | None, _about("pipeline_restart_seconds")] = None
    worker_slots: Annotated[int | None, _about("worker_slots")] = None
    worker_threads: Annotated[int | None, _about("worker_threads")] = None
    worker_drain_seconds: Annotated[float | None, _about("worker_drain_seconds")] = None
    worker_tenants: Annotated[str | None, _about("worker_tenants")] = None
    worker_plans: Annotated[str | None, _about("worker_plans")] = None
    once_keep: Annotated[int | None, _about("once_keep")] = None
    java_home: Annotated[str | None, _about("java_home")] = None
    log_level: Annotated[str | None, _about("log_level")] = None
    log_format: Annotated[str | None, _about("log_format")] = None

    def load(self) -> Configuration:
        flags: dict[str, Any] = {field.name: getattr(self, field.name) for field in fields(self)}
        return load(flags, flags.pop("config"))


DEFAULT = Options()
