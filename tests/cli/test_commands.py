"""The commands, run as people run them."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest

from tenantry.nats import claims
from tenantry.postgres.migrations import Migrations
from tenantry.testing import TestPlatform
from tests.own_server import OwnServer
from tests.processes import TENANTRY, Up, run_tenantry

SHOW_HELP = """
import sys
from tenantry.cli import main
sys.argv = ["tenantry", "--help"]
try:
    main()
finally:
    heavy = ("asyncio", "msgspec", "nats", "pandas", "psycopg", "pyarrow", "pydantic", "pyspark", "structlog")
    print([module for module in heavy if module in sys.modules])
"""


def test_help_is_quick_because_it_imports_nothing_heavy() -> None:
    done = subprocess.run([sys.executable, "-c", SHOW_HELP], capture_output=True, text=True, check=True)
    assert done.stdout.strip().splitlines()[-1] == "[]"
    for command in ("up", "doctor", "migrate", "config", "bench"):
        assert command in done.stdout


@pytest.mark.parametrize("command", [["up"], ["doctor"], ["migrate"], ["config", "show"], ["bench"]])
def test_every_command_explains_itself(command: list[str]) -> None:
    done = run_tenantry(*command, "--help")
    assert done.returncode == 0, done.stderr
    assert "--json" in done.stdout


def test_the_version_is_told() -> None:
    assert run_tenantry("--version").stdout.strip() == "0.1.0"


def test_an_unknown_command_is_an_error() -> None:
    done = run_tenantry("upp")
    assert done.returncode != 0
    assert "upp" in done.stdout + done.stderr


def test_the_demo_gets_ready_runs_and_ends_by_itself_with_a_summary(tmp_path: Path) -> None:
    done = run_tenantry("up", "--demo", "--seconds", "3", "--json", "--data", tmp_path / "data")
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout.splitlines()[-1])
    tenants = summary["tenants"]
    assert set(tenants) == {"acme", "globex", "initech", "noisy"}
    for tenant in tenants.values():
        assert tenant["emitted"] == tenant["read"] > 0
        assert tenant["lag"] == 0
    assert tenants["noisy"]["emitted"] > 10 * tenants["acme"]["emitted"]
    again = run_tenantry("up", "--demo", "--seconds", "1", "--data", tmp_path / "data")
    assert again.returncode == 0, again.stderr
    assert "Tenantry is ready" in again.stdout


def test_the_demo_runs_on_a_server_without_accounts(own_nats: OwnServer, tmp_path: Path) -> None:
    done = run_tenantry(
        "up", "--demo", "--seconds", "1", "--json", "--data", tmp_path / "data", "--nats-url", own_nats.address
    )
    assert done.returncode == 0, done.stderr
    tenants = json.loads(done.stdout.splitlines()[-1])["tenants"]
    assert {name: tenant["tier"] for name, tenant in tenants.items()} == {
        "acme": "stream",
        "globex": "stream",
        "initech": "pooled",
        "noisy": "stream",
    }
    assert all(tenant["emitted"] == tenant["read"] > 0 for tenant in tenants.values())


@pytest.mark.parametrize("seconds", ["0", "-1", "soon"])
def test_seconds_must_be_a_positive_number(seconds: str) -> None:
    done = run_tenantry("up", "--seconds", seconds)
    assert done.returncode != 0
    assert "seconds" in (done.stdout + done.stderr).lower()


def test_up_uses_servers_that_are_named_instead_of_embedded_ones(
    platform: TestPlatform, database: str, tmp_path: Path
) -> None:
    named = {
        "NATS_URL": platform.nats.url,
        "NATS_CREDS": str(platform.nats.credentials_file("platform")),
        "DATABASE_URL": database,
    }
    data = tmp_path / "data"
    refused = run_tenantry("up", "--seconds", "0.1", "--data", data, env=named)
    assert refused.returncode == 1
    assert "run `tenantry migrate`" in refused.stderr
    assert run_tenantry("migrate", env=named).returncode == 0
    without_secret = run_tenantry("up", "--seconds", "0.1", "--data", data, env=named)
    assert without_secret.returncode == 1
    assert "set TENANTRY_SECRET" in without_secret.stderr
    named["TENANTRY_SECRET"] = "a secret that nobody else has"
    done = run_tenantry("up", "--seconds", "0.1", "--json", "--data", data, env=named)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["nats_url"] == "external"
    assert not data.exists()


def test_migrate_shows_first_applies_then_has_nothing_left(database: str) -> None:
    env = {"DATABASE_URL": database}
    shown = run_tenantry("migrate", "--dry-run", env=env)
    assert "create schema tenantry" in shown.stdout
    with psycopg.connect(database) as connection:
        assert connection.execute("select to_regnamespace('tenantry')").fetchone() == (None,)
    applied = json.loads(run_tenantry("migrate", "--json", env=env).stdout)
    assert [each["version"] for each in applied["applied"]] == [migration.version for migration in Migrations().all]
    assert "up to date" in run_tenantry("migrate", env=env).stdout


def test_migrate_of_a_named_database_starts_and_writes_nothing_else(database: str, tmp_path: Path) -> None:
    done = run_tenantry("migrate", "--data", tmp_path / "data", env={"DATABASE_URL": database})
    assert done.returncode == 0, done.stderr
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize("command", ["migrate", "doctor", "up"])
def test_an_address_that_is_none_does_not_repeat_its_password(command: str, tmp_path: Path) -> None:
    done = run_tenantry(command, "--data", tmp_path / "data", env={"DATABASE_URL": "mysql://u:hidden@h/db"})
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert "hidden" not in done.stdout + done.stderr
    assert "expected DATABASE_URL to be an address" in " ".join((done.stdout + done.stderr).split())


def test_up_refuses_to_be_ready_without_its_broker(tmp_path: Path) -> None:
    done = run_tenantry("up", "--data", tmp_path / "data", env={"NATS_URL": "nats://127.0.0.1:9"})
    assert done.returncode == 1
    assert "cannot reach NATS at 127.0.0.1:9" in done.stderr
    assert "ready" not in done.stdout


async def test_doctor_says_that_jetstream_is_off(platform: TestPlatform, tmp_path: Path) -> None:
    async with platform.account(claims.AccountLimits()) as broker:
        creds = tmp_path / "user.creds"
        creds.write_text(claims.format_credentials(broker.credentials))
        env = {"NATS_URL": platform.nats.url, "NATS_CREDS": str(creds)}
        done = await asyncio.to_thread(run_tenantry, "doctor", "--data", tmp_path / "data", env=env)
    assert done.returncode == 1
    assert "JetStream does not" in " ".join(done.stdout.split())


def test_migrate_starts_the_embedded_database_if_nobody_has(tmp_path: Path) -> None:
    done = run_tenantry("migrate", "--data", tmp_path / "data")
    assert done.returncode == 0, done.stderr
    assert "applied 0001" in done.stdout


def test_doctor_finds_a_running_platform_well(tmp_path: Path) -> None:
    with Up(tmp_path / "data") as up:
        up.until_ready()
        done = run_tenantry("doctor", "--json", "--data", up.data)
        assert done.returncode == 0, done.stdout
        findings = {each["name"]: each for each in json.loads(done.stdout)}
        assert {each["state"] for each in findings.values()} == {"ok"}
        assert "nats-server 2.15" in findings["NATS"]["detail"]
        assert "PostgreSQL 18" in findings["database"]["detail"]
        assert "OK" in run_tenantry("doctor", "--data", up.data).stdout
    idle = {
        each["name"]: each["state"] for each in json.loads(run_tenantry("doctor", "--json", "--data", up.data).stdout)
    }
    assert (idle["NATS"], idle["database"]) == ("idle", "idle")


def test_doctor_says_what_to_fix(tmp_path: Path) -> None:
    env = {
        "NATS_URL": "nats://127.0.0.1:9",
        "DATABASE_URL": "postgresql://u:hidden@127.0.0.1:9/x",
        "TENANTRY_TYPO": "1",
    }
    done = run_tenantry("doctor", "--data", tmp_path, env=env)
    assert done.returncode == 1
    for part in ("TENANTRY_TYPO", "127.0.0.1:9", "is it running there", "check DATABASE_URL"):
        assert part in " ".join(done.stdout.split())
    assert "hidden" not in done.stdout


def test_config_show_says_where_each_value_came_from(tmp_path: Path) -> None:
    (tmp_path / "tenantry.toml").write_text('namespace = "shop"')
    env = {"DATABASE_URL": "postgresql://shop:hidden@db/shop", "TENANTRY_TYPO": "1"}
    shown = run_tenantry("config", "show", "--json", "--log-level", "debug", env=env, cwd=tmp_path)
    document = json.loads(shown.stdout)
    assert document["settings"]["namespace"] == {"value": "shop", "from": "file tenantry.toml"}
    assert document["settings"]["log_level"] == {"value": "debug", "from": "flag"}
    assert document["settings"]["database_url"]["from"] == "environment DATABASE_URL"
    assert document["unknown_variables"] == ["TENANTRY_TYPO"]
    table = run_tenantry("config", "show", env=env, cwd=tmp_path).stdout
    assert "shop" in table
    assert "hidden" not in shown.stdout + table


def test_a_wrong_setting_is_a_sentence_and_not_a_traceback(tmp_path: Path) -> None:
    done = run_tenantry("up", "--data", tmp_path, env={"TENANTRY_DATABASE_POOL": "0"})
    assert done.returncode == 1
    assert done.stderr.startswith("tenantry: database_pool")
    assert "Traceback" not in done.stderr


def test_bench_lists_what_it_can_measure_and_refuses_what_it_cannot() -> None:
    assert "wire" in run_tenantry("bench").stdout
    refused = run_tenantry("bench", "nothing")
    assert refused.returncode == 1
    assert (
        "expected a benchmark, one of fairness, ingest, pipeline, provision, relay, source, wire, workers"
        in refused.stderr
    )


def test_the_command_is_installed_beside_python() -> None:
    assert TENANTRY.exists()
