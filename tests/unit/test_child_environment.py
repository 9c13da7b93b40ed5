"""Processes that are started here have the same settings."""

from __future__ import annotations

from pathlib import Path

import pytest

from tenantry.cli.child_environment import settings_environment
from tenantry.config import load

GIVEN = {
    "namespace": "shop",
    "app": "shop:app",
    "data": "/srv/tenantry",
    "nats_url": "nats://me:hidden@127.0.0.1:4222",
    "nats_creds": "platform.creds",
    "database_url": "postgresql://me:hidden@127.0.0.1/db",
    "database_pool": 3,
    "secret": "hidden too",
    "accounts": '[{"name": "acme", "stream": "S", "consumer": "c", "tenant_id": "acme", "creds": "/a.creds"}]',
    "push_allowed_networks": "10.0.0.0/8,fd00::/8",
    "pipelines": False,
    "spark_config": '{"spark.a": "b, \\"c\\""}',
    "lake_options": '{"AWS_REGION": "eu"}',
    "table_seconds": 0.5,
    "worker_tenants": "acme,globex",
    "log_level": "debug",
}


def test_whatever_was_set_and_wherever_a_child_process_has_it_the_same(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    here = load(GIVEN).settings
    for name in ("TENANTRY_PIPELINES", "TENANTRY_WORKER_SLOTS"):
        monkeypatch.delenv(name, raising=False)
    for name, value in settings_environment(here).items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)
    child = load()
    assert child.settings == here
    assert not child.unknown_variables
    assert {name for name, origin in child.origins.items() if origin != "default"} == here.model_fields_set
