"""What people do to a platform that runs, and what it then does."""

from __future__ import annotations

import re
from pathlib import Path

from tests.processes import Up, run_tenantry, wait_for


def test_the_demo_goes_on_when_its_tenants_are_moved_and_suspended(tmp_path: Path) -> None:
    def published(up: Up, tenant: str, tier: str) -> list[int]:
        """What each table that was shown says."""
        rows = re.findall(rf"^ {tenant} +{tier} +([\d,]+)", up.output, re.MULTILINE)
        return [int(row.replace(",", "")) for row in rows]

    with Up(tmp_path / "data", "--demo") as up:
        up.until_ready()
        moved = run_tenantry("tenant", "move", "initech", "--to", "stream", "--data", up.data)
        assert moved.returncode == 0, moved.stderr
        again = run_tenantry("tenant", "move", "initech", "--to", "stream", "--data", up.data)
        assert again.returncode == 0, again.stderr
        assert run_tenantry("tenant", "suspend", "acme", "--data", up.data).returncode == 0
        wait_for(lambda: up.process.poll() is not None or len(set(published(up, "initech", "stream"))) >= 2)
        wait_for(lambda: up.process.poll() is not None or len(published(up, "acme", "account")) >= 3)
        # Tables come every few seconds: in the last two, only one of them has published more.
        assert published(up, "acme", "account")[-1] == published(up, "acme", "account")[-2]
        assert up.stop() == 0, up.output


def test_accounts_that_others_provision_are_verified_on_the_embedded_server(tmp_path: Path) -> None:
    accounts = tmp_path / "accounts"
    (accounts / "acme").mkdir(parents=True)
    (accounts / "acme" / "meta.yaml").write_text(
        "name: acme\nstream: TENANT_ACME_EVENTS\nconsumer: billing\ntenant_id: acme\n"
    )
    env = {"TENANTRY_ACCOUNTS_DIRECTORY": str(accounts)}
    with Up(tmp_path / "data", env=env) as up:
        up.until_ready()
        wait_for(lambda: "there is no stream TENANT_ACME_EVENTS" in up.output)
        assert run_tenantry("tenant", "create", "acme", "--data", up.data).returncode == 0
        assert run_tenantry("tenant", "creds", "acme", "--consumer", "billing", "--data", up.data).returncode == 0
        wait_for(lambda: "accounts_directory.account.consumed" in up.output)
        assert up.stop() == 0, up.output
    named = '[{"name": "acme", "stream": "NONE", "consumer": "billing", "tenant_id": "acme"}]'
    refused = run_tenantry("up", "--seconds", "1", "--data", tmp_path / "data", env={"TENANTRY_ACCOUNTS": named})
    assert refused.returncode == 1
    assert "there is no stream NONE" in refused.stderr
