"""`tenantry dlq`, against a platform that runs; the test does what workers would do."""

from __future__ import annotations

import json
import re
import shlex
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from tests.cli.conftest import Platform
from tests.processes import TENANTRY, wait_for
from tests.subscriptions.letters import Letters

DOCS = Path(__file__).parents[2] / "docs" / "how-to"
ABOUT_SERVICES = r"tenantry (dlq|subscription jobs|pause|resume|lag|replay .*--service)"

pytestmark = pytest.mark.xdist_group("event commands")


@pytest.fixture
def letters(running: Platform) -> Iterator[Letters]:
    letters = Letters(running.database_url)
    letters.serve("invoices")
    yield letters
    for table in ("dead_letters", "subscription_jobs", "subscriptions"):
        letters.execute(f"delete from tenantry.{table}")


@pytest.fixture
def start(running: Platform, tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """A command in the background."""
    started: list[subprocess.Popen[str]] = []

    def begin(*arguments: str) -> subprocess.Popen[str]:
        command: list[str | Path] = [TENANTRY, *arguments, "--data", running.up.data]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        started.append(process)
        return process

    yield begin
    for process in started:
        process.kill()
        process.communicate()


def until_asked(letters: Letters, process: subprocess.Popen[str], count: int) -> list[UUID]:
    """What workers are to do, once it is asked of them."""
    asked: list[Any] = []

    def is_asked() -> bool:
        asked[:] = letters.execute("select id from tenantry.dead_letters where job is not null order by sequence")
        return len(asked) == count or process.poll() is not None

    wait_for(is_asked)
    assert process.poll() is None, process.communicate()
    return [each["id"] for each in asked]


def test_dead_letters_are_listed_by_filter_and_shown_whole(running: Platform, letters: Letters) -> None:
    old = letters.bury("acme", died_at="2026-01-01")
    new = letters.bury(
        "own", "mails", reason="KeyError: 'total'\nsecond line", traceback="File x, line 3", key="order-7", deliveries=4
    )
    assert [each["id"] for each in running.json("dlq", "list")] == [str(new), str(old)]
    for flags in (
        ("--tenant", "own"),
        ("--service", "mails"),
        ("--key", "order-7"),
        ("--reason", "keyerror"),
        ("--since", "1h"),
        ("--since", "2026-06-01"),
        ("--event", "event-2"),
        ("--limit", "1"),
    ):
        assert [each["id"] for each in running.json("dlq", "list", *flags)] == [str(new)], flags
    assert running.json("dlq", "list", "--until", "2026-06-01", "--state", "dead")[0]["id"] == str(old)
    listed = running.run("dlq", "list")
    assert "KeyError: 'total'" in listed
    assert "second line" not in listed
    assert "There are no such dead letters." in running.run("dlq", "list", "--type", "nothing")
    assert "or how long ago, like 24h, got: 'soon'" in running.run("dlq", "list", "--since", "soon", status=1)
    shown = running.run("dlq", "show", str(new)[:8])
    for part in ("second line", "File x, line 3", "order-7", "Nats-Msg-Id", "own/event-2", '\n    "total": 7\n'):
        assert part in shown, shown
    assert running.json("dlq", "show", str(new))["payload"] == {"data": {"total": 7}}
    assert "there is no dead letter 'zzz'" in running.run("dlq", "show", "zzz", status=1)


def test_a_redrive_shows_first_what_it_is_about_and_needs_a_word(running: Platform, letters: Letters) -> None:
    parked, held = letters.bury("acme", key="a", state="parked"), letters.bury("acme", key="a", state="held")
    letters.bury("own", "pipelines")
    shown = running.run("dlq", "redrive", str(held)[:8], "--dry-run")
    assert "2 dead letters to redrive" in shown
    preview = running.json("dlq", "redrive", "--dry-run")["preview"]
    assert (preview["count"], preview["left_out"]) == (2, 1)
    assert [(each["service"], each["tenant_id"], each["count"]) for each in preview["groups"]] == [
        ("invoices", "acme", 2)
    ]
    assert "say --yes to go on" in running.run("dlq", "redrive", status=1)
    assert letters.execute("select 1 from tenantry.subscription_jobs") == []
    assert "There is nothing to redrive." in running.run("dlq", "redrive", "--service", "nothing")
    assert "tenantry replay --pipeline" in running.run("dlq", "redrive", "--service", "pipelines", status=1)
    detached = running.json("dlq", "redrive", "--service", "invoices", "--yes", "--detach")
    assert [(job["kind"], job["total"]) for job in detached["jobs"]] == [("redrive", 2)]
    assert letters.with_job(UUID(detached["jobs"][0]["id"])) == [parked, held]
    (listed,) = running.json("subscription", "jobs", "--service", "invoices")
    assert listed["id"] == detached["jobs"][0]["id"]
    assert "0 of 2" in running.run("subscription", "jobs")
    assert "is cancelled" in running.run("subscription", "cancel", listed["id"][:8])
    assert "there is no job" in running.run("subscription", "cancel", "zzz", status=1)


def test_whoever_redrives_waits_for_the_end_and_learns_what_failed_again(
    letters: Letters, start: Callable[..., subprocess.Popen[str]]
) -> None:
    for service in ("invoices", "invoices", "mails"):
        letters.bury("acme", service)
    process = start("dlq", "redrive", "--yes")
    first, second, third = until_asked(letters, process, 3)
    letters.handle(first)
    letters.handle(third)
    assert process.poll() is None
    letters.fail(second, "again")
    out, said = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "redrive for invoices of acme: done, 1 dead letters" in out, out + said
    assert "1 failed again" in out
    assert "redrive for mails of acme: done, 1 dead letters" in out


def test_who_breaks_off_a_redrive_cancels_the_rest(
    letters: Letters, start: Callable[..., subprocess.Popen[str]]
) -> None:
    ids = [letters.bury("acme") for _ in range(2)]
    process = start("dlq", "redrive", "--yes", "--json")
    until_asked(letters, process, 2)
    letters.handle(ids[0])
    process.send_signal(signal.SIGINT)
    out, said = process.communicate(timeout=60)
    assert process.returncode == 1, said
    (job,) = json.loads(out)["jobs"]
    assert (job["state"], job["done"], job["total"]) == ("cancelled", 1, 2)
    assert letters.with_job(UUID(job["id"])) == []
    assert letters.left() == ids[1:]


def test_what_is_discarded_is_gone(running: Platform, letters: Letters) -> None:
    letters.bury("acme")
    kept = letters.bury("own")
    stopped = letters.bury("acme", state="stopped")
    assert "say --yes to go on" in running.run("dlq", "discard", "--tenant", "acme", status=1)
    done = running.json("dlq", "discard", "--tenant", "acme", "--yes", "--detach")
    assert (done["discarded"], [job["kind"] for job in done["jobs"]]) == (1, ["discard"])
    assert letters.left() == [kept, stopped]
    assert "1 dead letter discarded" in running.run("dlq", "discard", str(kept)[:12], "--yes")
    assert letters.left() == [stopped]


@pytest.mark.parametrize("page", ["dead-letters", "replay"])
def test_the_commands_of_the_page_are_those_that_there_are(running: Platform, letters: Letters, page: str) -> None:
    letters.bury("acme", id=UUID("3f2a91c0-0000-4000-8000-000000000000"), reason="KeyError: 'total'")
    blocks = re.findall(r"```sh\n(.*?)```", (DOCS / f"{page}.md").read_text(), re.DOTALL)
    commands = [line for block in blocks for line in block.splitlines() if re.match(ABOUT_SERVICES, line)]
    assert len(commands) >= 6
    for command in commands:
        arguments = shlex.split(command)[1:]
        running.run(*arguments, *(["--detach"] if arguments[0] == "replay" else []))
        letters.execute("update tenantry.subscription_jobs set state = 'cancelled'")
        letters.execute("update tenantry.dead_letters set job = null")
