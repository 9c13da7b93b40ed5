"""The commands about tenants, run as people run them, against one platform."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from cyclopts import App

from nats_bulk import Credentials
from tenantry.cli.app import app
from tenantry.cli.audit import verify
from tenantry.cli.limits import parse_limits
from tenantry.cli.tenant import create
from tenantry.cli.tenant_flags import TenantFlags, parse_channels
from tenantry.config import Settings
from tenantry.embedded.platform import use_platform
from tenantry.errors import BrokerRefused, TenantInvalid
from tenantry.nats.connections import Broker, connect
from tests.conftest import open_to_others
from tests.processes import TENANTRY, Up, run_tenantry

TENANTS = ("audited", "erasing", "exported", "leaving", "mover", "pausing", "till", "turning")
"""One for each test that needs one that is there already."""
PAGE = Path(__file__).parents[2] / "docs" / "reference" / "commands.md"

# All on one worker, so that there is one platform.
pytestmark = pytest.mark.xdist_group("tenant commands")


class Shell:
    """A shell in which the platform is known."""

    def __init__(self, up: Up) -> None:
        self.up = up

    def run(self, *arguments: str | Path, status: int = 0) -> subprocess.CompletedProcess[str]:
        done = run_tenantry(*arguments, "--data", self.up.data)
        assert done.returncode == status, done.stdout + done.stderr
        assert "Traceback" not in done.stderr
        return done

    def json(self, *arguments: str | Path, status: int = 0) -> Any:
        return json.loads(self.run(*arguments, "--json", status=status).stdout)

    def answer(self, answer: str, *arguments: str) -> tuple[str, int]:
        """Run a command at a terminal and answer what it asks; what was to be seen, and its exit status."""
        terminal, inner = pty.openpty()
        process = subprocess.Popen(
            [TENANTRY, *arguments, "--data", self.up.data], stdin=inner, stdout=inner, stderr=inner
        )
        os.close(inner)
        seen = b""
        while b"to go on:" not in seen:
            seen += os.read(terminal, 4096)
        os.write(terminal, f"{answer}\n".encode())
        try:
            while part := os.read(terminal, 4096):
                seen += part
        except OSError:
            # The other side has been closed.
            pass
        finally:
            os.close(terminal)
        return seen.decode(), process.wait()

    def broker(self, creds: str) -> Broker:
        return Broker(self.up.environment["NATS_URL"], Credentials.from_text(creds))


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    folder = tmp_path_factory.mktemp("platform")
    open_to_others(folder)
    with Up(folder / "data") as up:
        up.until_ready()
        shell = Shell(up)
        file = folder / "tenants.jsonl"
        file.write_text(
            "\n".join(json.dumps({"id": id, "channels": {"events": None, "orders": "3d"}}) for id in TENANTS)
        )
        shell.run("tenant", "create", "--file", file)
        yield shell


async def publish(broker: Broker, tenant: str) -> int:
    """The sequence of the event that was published."""
    async with connect(broker, "test") as client:
        acknowledged = await client.jetstream().publish(f"tenantry.tenants.{tenant}.events.order.placed", b"{}")
        return acknowledged.seq


def test_create_creates_then_changes_then_has_nothing_to_do(shell: Shell) -> None:
    flags = ("--name", "Acme [Inc]", "--channel", "events", "--channel", "orders=3d", "--limit", "storage=20GiB")
    created = shell.json("tenant", "create", "acme", *flags)
    assert (created["outcome"], created["plan"], created["tier"]) == ("created", "pro", "stream")
    assert created["ready"]
    assert created["channels"] == {"events": {"retention": 604_800}, "orders": {"retention": 259_200}}
    assert created["limits"]["storage"] == 20 << 30
    assert "acme is unchanged" in shell.run("tenant", "create", "acme", *flags).stdout
    assert "acme is changed: plan free" in shell.run("tenant", "create", "acme", "--plan", "free").stdout
    shown = shell.run("tenant", "show", "acme").stdout
    for part in ("Acme [Inc]", "active, ready", "TENANT_ACME_ORDERS", "20GiB", "this tenant", "plan free"):
        assert part in shown


def test_set_keeps_what_it_is_not_told_about(shell: Shell) -> None:
    flags = ("--limit", "retention.events=30d", "--limit", "batch=7", "--tenant-lake", "/lake")
    shell.run("tenant", "create", "setting", *flags)
    changed = shell.json("tenant", "set", "setting", "--limit", "retention=2d", "--unset-limit", "batch", "--tag", "")
    assert changed["overrides"] == {"retention": {"*": 172_800, "events": 2_592_000}}
    assert changed["placement"] == {"lake": "/lake"}
    back = shell.json("tenant", "set", "setting", "--unset-limit", "retention.events", "--tenant-lake", "")
    assert (back["overrides"], back["placement"]) == ({"retention": {"*": 172_800}}, {})
    assert "there is no tenant 'nobody'" in shell.run("tenant", "set", "nobody", "--plan", "pro", status=1).stderr


def test_a_channel_is_erased_only_when_that_is_confirmed(shell: Shell) -> None:
    seen, status = shell.answer("erasing", "tenant", "set", "erasing", "--no-channel", "orders")
    assert status == 0, seen
    assert "Erasing channel orders of tenant erasing with all events cannot be undone" in seen
    assert list(shell.json("tenant", "show", "erasing")["channels"]) == ["events"]


def test_bad_flags_are_named_with_an_example(shell: Shell) -> None:
    for limit in ("storage", "storage=", "=10GiB"):
        with pytest.raises(TenantInvalid, match=r"expected --limit NAME=VALUE, like storage=10GiB .* got"):
            parse_limits([limit])
    with pytest.raises(TenantInvalid, match=r"expected --limit to name a limit, one of retention, .* got: 'storag'"):
        parse_limits(["storag=1"])
    assert parse_limits(["retention=7d", "retention.events=30d", "storage=unlimited"]) == {
        "retention": {"*": "7d", "events": "30d"},
        "storage": "-1",
    }
    for channel in ("=3d", "orders="):
        with pytest.raises(TenantInvalid, match=r"expected --channel NAME or NAME=RETENTION, like .* got"):
            parse_channels([channel])
    with pytest.raises(TenantInvalid, match=r"expected --channel orders to be a positive duration like .* got: 'soon'"):
        parse_channels(["orders=soon"])
    done = shell.run("tenant", "create", "flags", "--limit", "storage=lots", status=1)
    assert (
        done.stderr == "tenantry: expected storage to be a size like 512MiB or 10GB, up to 1PiB, or -1, got: 'lots'\n"
    )
    with pytest.raises(TenantInvalid, match=r"expected an ID with flags, .*or --file alone"):
        create(file=Path("tenants.jsonl"), flags=TenantFlags(plan="pro"))


def test_many_tenants_come_from_a_file_and_a_bad_line_harms_no_other(shell: Shell, tmp_path: Path) -> None:
    lines = [json.dumps({"id": f"many-{number}", "plan": "free", "tier": "pooled"}) for number in range(20)]
    lines[5:5] = ["", "nonsense", '{"id": "No!"}', '{"id": "many-0"}', '{"id": "extra", "nmae": "x"}', '{"id": 7}']
    file = tmp_path / "tenants.jsonl"
    file.write_text("\n".join(lines))
    done = shell.run("tenant", "create", "--file", file, status=1)
    assert done.stdout == "20 created, 0 changed, 0 unchanged, 5 failed\n"
    problems = dict(line.split(": ", 1) for line in done.stderr.splitlines())
    assert list(problems) == ["line 7", "line 8", "line 9", "line 10", "line 11"]
    assert "many-0 is in line 1 already" in problems["line 9"]
    assert "got: nmae" in problems["line 10"]
    again = shell.json("tenant", "create", "--file", file, status=1)
    assert (again["unchanged"], again["failed"]) == (20, 5)
    assert again["problems"][0]["line"] == 7
    listed = shell.json("tenant", "list", "--tier", "pooled", "--plan", "free", "--status", "active")
    assert {each["id"] for each in listed} >= {f"many-{number}" for number in range(20)}


async def test_a_move_is_shown_first_and_credentials_survive_it(shell: Shell) -> None:
    run = asyncio.to_thread
    issued = await run(shell.run, "tenant", "creds", "mover")
    assert "shown this once" in issued.stderr
    broker = shell.broker(issued.stdout)
    assert await publish(broker, "mover") == 1
    plan = await run(shell.json, "tenant", "move", "mover", "--to", "account", "--dry-run")
    assert (plan["from_tier"], plan["to_tier"], plan["credentials"]) == ("stream", "account", "stay valid")
    lane = next(lane for lane in plan["lanes"] if lane["channel"] == "events")
    assert lane["from_stream"] == lane["to_stream"] == "TENANT_MOVER_EVENTS"
    assert lane["from_place"].endswith("in the platform's account")
    assert lane["to_place"].endswith("in an account of its own")
    moved = await run(shell.run, "tenant", "move", "mover", "--to", "account")
    assert "mover has moved from stream to account" in moved.stdout
    shown = await run(shell.json, "tenant", "show", "mover")
    assert (shown["tier"], shown["move"], shown["credentials"]) == ("account", None, 1)
    assert await publish(broker, "mover") > 1


async def test_a_credential_works_until_it_is_revoked(shell: Shell, tmp_path: Path) -> None:
    run = asyncio.to_thread
    file = tmp_path / "till.creds"
    issued = await run(shell.json, "tenant", "creds", "till", "--out", file, "--expires", "1h", "--kind", "publish")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert "creds" not in issued
    text = file.read_text()
    refused = await run(shell.run, "tenant", "creds", "till", "--out", file, status=1)
    assert "exists already; --force replaces it" in refused.stderr
    assert file.read_text() == text
    assert await publish(shell.broker(text), "till") == 1
    revoked = await run(shell.run, "creds", "revoke", "till", issued["id"][:8])
    assert issued["id"] in revoked.stdout
    with pytest.raises(BrokerRefused):
        await publish(shell.broker(text), "till")


async def test_a_rotated_credential_leaves_the_old_one_valid_if_told_so(shell: Shell, tmp_path: Path) -> None:
    run = asyncio.to_thread
    first = await run(shell.json, "creds", "issue", "turning", "--consumer", "billing")
    second = await run(shell.json, "creds", "rotate", "turning", first["id"], "--keep-old")
    assert second["consumer"] == "billing"
    await publish(shell.broker(first["creds"]), "turning")
    file = tmp_path / "new.creds"
    await run(shell.run, "creds", "rotate", "turning", second["id"], "--out", file)
    states = {each["id"]: each["state"] for each in await run(shell.json, "creds", "list", "turning")}
    assert sorted(states.values()) == ["revoked", "valid", "valid"]
    assert states[second["id"]] == "revoked"
    await publish(shell.broker(file.read_text()), "turning")


async def test_a_suspended_tenant_is_out_until_it_is_resumed(shell: Shell) -> None:
    run = asyncio.to_thread
    creds = (await run(shell.json, "tenant", "creds", "pausing"))["creds"]
    assert (await run(shell.json, "tenant", "suspend", "pausing"))["status"] == "suspended"
    with pytest.raises(BrokerRefused):
        await publish(shell.broker(creds), "pausing")
    assert "pausing is active" in (await run(shell.run, "tenant", "resume", "pausing")).stdout
    await publish(shell.broker(creds), "pausing")


def test_deleting_asks_for_the_name(shell: Shell) -> None:
    assert "say --yes" in shell.run("tenant", "delete", "leaving", status=1).stderr
    seen, status = shell.answer("yes", "tenant", "delete", "leaving")
    assert status == 1
    assert "nothing was changed" in seen
    assert shell.json("tenant", "delete", "leaving", "--yes") == {"id": "leaving", "outcome": "deleted"}


def test_plans_are_made_from_others_and_deleted_when_nobody_has_them(shell: Shell) -> None:
    assert "take them over with --from" in shell.run("plan", "set", "gold", "--limit", "batch=5", status=1).stderr
    flags = ("--limit", "retention=90d", "--limit", "retention.events=1w", "--limit", "storage=1TiB")
    gold = shell.json("plan", "set", "gold", "--from", "pro", *flags)
    assert gold["outcome"] == "created"
    assert gold["limits"]["retention"] == {"*": 7_776_000, "events": 604_800, "properties": 86_400}
    assert "90d, events 7d, properties 1d" in shell.run("plan", "show", "gold").stdout
    assert {"free", "pro", "enterprise", "gold"} <= {each["name"] for each in shell.json("plan", "list")}
    assert "plan gold is deleted" in shell.run("plan", "delete", "gold").stdout


def test_a_key_is_printed_alone_and_once(shell: Shell) -> None:
    done = shell.run("key", "create", "--name", "console", "--scope", "tenants:read", "--expires", "90d")
    (text,) = done.stdout.splitlines()
    assert text.startswith("tk_")
    (listed,) = [each for each in shell.json("key", "list") if each["name"] == "console"]
    assert (listed["scopes"], listed["tenant_id"], listed["state"]) == (["tenants:read"], None, "valid")
    revoked = shell.run("key", "revoke", listed["id"])
    assert listed["id"] in revoked.stdout
    shown = shell.run("key", "list").stdout
    assert "revoked" in shown
    assert text not in shown
    assert "got: 'cake'" in shell.run("key", "create", "--name", "x", "--scope", "cake", status=1).stderr


def test_a_changed_audit_row_is_found(shell: Shell) -> None:
    (entry,) = shell.json("audit", "list", "--tenant", "audited")
    assert entry["act"] == "tenant.create"
    assert entry["actor"].startswith("cli:")
    seal = shell.json("audit", "verify")["seal"]
    with pytest.raises(TenantInvalid, match="expected --expect to be a seal"):
        verify(expect="nonsense")
    change = "update tenantry.audit set actor = %s where number = %s"
    with psycopg.connect(shell.up.environment["DATABASE_URL"], autocommit=True) as connection:
        connection.execute(change, ("somebody", entry["number"]))
        broken = shell.run("audit", "verify", status=1)
        assert f"audit row {entry['number']} is not what was written" in broken.stderr
        connection.execute(change, (entry["actor"], entry["number"]))
    assert "OK: all" in shell.run("audit", "verify", "--expect", seal).stdout


async def test_exported_accounts_are_folders_whose_user_can_fetch(shell: Shell, tmp_path: Path) -> None:
    run = asyncio.to_thread
    folder = tmp_path / "accounts"
    arguments = ("accounts", "export", folder, "--tenant", "exported", "--consumer", "billing")
    assert await run(shell.json, *arguments) == [{"tenant": "exported", "outcome": "written", "problem": ""}]
    assert "unchanged" in (await run(shell.run, *arguments)).stdout
    creds = folder / "exported" / "user.creds"
    assert stat.S_IMODE(creds.stat().st_mode) == 0o600
    publisher = (await run(shell.json, "tenant", "creds", "exported"))["creds"]
    await publish(shell.broker(publisher), "exported")
    async with connect(shell.broker(creds.read_text()), "test") as client:
        inbox = client.new_inbox()
        answers = await client.subscribe(inbox)
        await client.publish("$JS.API.CONSUMER.MSG.NEXT.TENANT_EXPORTED_EVENTS.billing", b"1", reply=inbox)
        assert (await answers.next_msg(timeout=10)).data == b"{}"
    # As the tenant's own user, and as the platform's, who may ask for everything.
    assert "OK" in (await run(shell.run, "accounts", "check", folder)).stdout
    creds.unlink()
    assert "OK" in (await run(shell.run, "accounts", "check", folder)).stdout
    (folder / "broken").mkdir()
    (folder / "broken" / "meta.yaml").write_text("name: broken\nstream: NONE\nconsumer: none\ntenant_id: broken\n")
    checked = await run(shell.json, "accounts", "check", folder, status=1)
    assert {Path(each["account"]).name: each["ok"] for each in checked} == {"exported": True, "broken": False}
    assert "there is no stream NONE" in next(each["problem"] for each in checked if not each["ok"])


def test_without_a_running_platform_its_servers_run_for_the_command(tmp_path: Path) -> None:
    data = tmp_path / "data"
    created = run_tenantry("tenant", "create", "acme", "--json", "--data", data)
    assert created.returncode == 0, created.stderr
    assert json.loads(created.stdout)["outcome"] == "created"
    listed = run_tenantry("tenant", "list", "--json", "--data", data)
    assert [tenant["id"] for tenant in json.loads(listed.stdout)] == ["acme"]


def test_commands_work_in_a_shell_that_has_sourced_the_environment_file(shell: Shell, tmp_path: Path) -> None:
    elsewhere = {**shell.up.environment, "XDG_DATA_HOME": str(tmp_path / "elsewhere")}
    created = run_tenantry("tenant", "create", "sourced", "--tier", "account", "--json", env=elsewhere)
    assert json.loads(created.stdout)["outcome"] == "created", created.stderr
    assert "BEGIN NATS USER JWT" in run_tenantry("tenant", "creds", "sourced", env=elsewhere).stdout
    assert shell.json("tenant", "show", "sourced")["ready"]


def test_commands_at_the_same_time_share_the_servers_that_one_of_them_starts(tmp_path: Path) -> None:
    data = tmp_path / "data"
    for first in (True, False):
        names = [f"{'a' if first else 'b'}{number}" for number in range(4)]
        running = [
            subprocess.Popen(
                [TENANTRY, "tenant", "create", name, "--data", data], stdout=subprocess.PIPE, stderr=subprocess.PIPE
            )
            for name in names
        ]
        problems = [each.communicate(timeout=120)[1].decode() for each in running]
        assert [each.returncode for each in running] == [0, 0, 0, 0], problems
    listed = run_tenantry("tenant", "list", "--json", "--data", data)
    assert len(json.loads(listed.stdout)) == 8


async def test_drift_is_found_and_repaired(tmp_path: Path) -> None:
    async def drift(*flags: str) -> subprocess.CompletedProcess[str]:
        return await asyncio.to_thread(run_tenantry, "tenant", "drift", *flags, "--data", tmp_path / "data")

    # The servers alone: `up` would put it right by itself, sooner or later.
    async with use_platform(Settings(data=tmp_path / "data")) as platform:
        await asyncio.to_thread(run_tenantry, "tenant", "create", "acme", "--data", tmp_path / "data")
        async with connect(platform.broker, "test") as client:
            await client.jetstream().delete_stream("TENANT_ACME_EVENTS")
        done = await drift("--json")
        (found,) = json.loads(done.stdout)
        assert (found["kind"], found["name"], found["tenant"]) == ("missing", "TENANT_ACME_EVENTS", "acme")
        assert done.returncode == 1
        done = await drift("--repair")
        assert "missing, repaired" in done.stdout
        assert done.returncode == 0
        assert "The servers have what is wanted" in (await drift()).stdout


def commands(under: App, *names: str) -> Iterator[tuple[str, ...]]:
    own = [name for name in under if not name.startswith("-")]
    if not own and names:
        yield names
    for name in own:
        yield from commands(under[name], *names, name)


def test_no_flag_of_a_command_is_also_a_setting() -> None:
    for names in commands(app):
        command = app[names[0]] if len(names) == 1 else app[names[0]][names[1]]
        flags = [name for argument in command.assemble_argument_collection() for name in argument.names if name != "*"]
        assert len(flags) == len(set(flags)), names


def test_every_command_has_its_line_in_the_reference_and_explains_itself(capsys: pytest.CaptureFixture[str]) -> None:
    page = PAGE.read_text()
    for names in commands(app):
        line = " ".join(("tenantry", *names))
        assert f"`{line}`" in page or f"`{line} " in page, f"{line} is missing in {PAGE}"
        app([*names, "--help"], result_action="return_value")
        # What runs until it is stopped has no result to print.
        assert "--json" in capsys.readouterr().out or names[0] == "serve", line
