"""`tenantry tail`, against a platform that runs."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest
from nats.js.api import ConsumerInfo

from tenantry.cli.session import use_administration
from tenantry.nats.connections import connect
from tests.cli.conftest import TIERS, Following, Platform
from tests.outbox.carrying import until
from tests.processes import PATIENCE, TENANTRY

pytestmark = pytest.mark.xdist_group("event commands")


def event(id: str, data: Any = None) -> bytes:
    envelope = {"specversion": "1.0", "id": id, "source": "/test", "type": "order.created", "data": data}
    return json.dumps(envelope).encode()


async def consumers(running: Platform, tenant: str) -> list[ConsumerInfo]:
    async with use_administration(running.settings) as administration:
        lane = await administration.lanes.resolve(tenant, "events")
    async with connect(lane.broker, "test") as client:
        return await client.jetstream().consumers_info(lane.stream)


async def test_events_of_all_tiers_are_shown_as_they_come(running: Platform, tmp_path: Path) -> None:
    with await asyncio.to_thread(Following, running, tmp_path, "--json", "--count", str(len(TIERS))) as following:
        sequences = {tenant: await running.publish(tenant, "order.created", event(tenant, 7)) for tenant in TIERS}
        shown = [json.loads(line) for line in await asyncio.to_thread(following.until, len(TIERS))]
        assert await asyncio.to_thread(following.process.wait, PATIENCE) == 0
    assert {each["tenant"]: each["sequence"] for each in shown} == sequences
    for each in shown:
        assert each.keys() == {"sequence", "tenant", "channel", "subject", "time", "event"}
        assert each["subject"] == f"tenantry.tenants.{each['tenant']}.events.order.created"
        assert (each["channel"], each["event"]["id"], each["event"]["data"]) == ("events", each["tenant"], 7)


async def test_only_what_is_wanted_is_shown(running: Platform, tmp_path: Path) -> None:
    wanted = ("pooled", "own", "--channel", "orders", "--type", "order.*", "--json", "--count", "2")
    with await asyncio.to_thread(Following, running, tmp_path, *wanted) as following:
        await running.publish("sharing", "order.created", event("another tenant"), "orders")
        await running.publish("pooled", "order.created", event("another channel"), "events")
        await running.publish("pooled", "invoice.created", event("another type"), "orders")
        await running.publish("pooled", "order.created.twice", event("a longer type"), "orders")
        await running.publish("pooled", "order.created", event("mine"), "orders")
        await running.publish("own", "order.paid", event("mine, too"), "orders")
        lines = await asyncio.to_thread(following.until, 2)
    assert [json.loads(line)["event"]["id"] for line in lines] == ["mine", "mine, too"]


async def test_a_tenant_that_is_created_meanwhile_is_followed(running: Platform, tmp_path: Path) -> None:
    with await asyncio.to_thread(Following, running, tmp_path, "--type", "late.*", "--json") as following:
        for number, tier in enumerate(("stream", "account", "pooled")):
            await asyncio.to_thread(running.run, "tenant", "create", f"late-{tier}", "--tier", tier)
            await running.publish(f"late-{tier}", "late.created", event(tier))
            lines = await asyncio.to_thread(following.until, number + 1)
            assert json.loads(lines[-1])["tenant"] == f"late-{tier}"


async def test_a_tenant_that_moves_is_followed_without_loss_or_repetition(running: Platform, tmp_path: Path) -> None:
    await asyncio.to_thread(running.run, "tenant", "create", "moving", "--tier", "pooled")
    with await asyncio.to_thread(Following, running, tmp_path, "--type", "move.*", "--json") as following:
        for number, tier in enumerate(("stream", "account")):
            await running.publish("moving", "move.before", event(f"before {tier}"))
            await asyncio.to_thread(following.until, 2 * number + 1)
            await asyncio.to_thread(running.run, "tenant", "move", "moving", "--to", tier)
            await running.publish("moving", "move.after", event(f"after {tier}"))
            lines = await asyncio.to_thread(following.until, 2 * number + 2)
    told = [json.loads(line) for line in lines]
    assert [each["event"]["id"] for each in told] == [
        "before stream",
        "after stream",
        "before account",
        "after account",
    ]
    sequences = [each["sequence"] for each in told]
    assert sequences == sorted(set(sequences))


async def test_what_was_published_before_is_shown_if_that_is_wanted(running: Platform) -> None:
    for id in ("1", "2", "3"):
        await running.publish("acme", "past.one", event(id), "orders")
        last = await running.publish("acme", "past.two", event(f"other {id}"), "orders")

    async def ids(*flags: str) -> list[str]:
        arguments = ("tail", "acme", "--channel", "orders", *flags, "--json")
        lines = (await asyncio.to_thread(running.run, *arguments)).splitlines()
        return [json.loads(line)["event"]["id"] for line in lines]

    assert await ids("--last", "3", "--count", "3") == ["other 2", "3", "other 3"]
    # Of those of this type, though others lie in between.
    assert await ids("--last", "2", "--count", "2", "--type", "past.one") == ["2", "3"]
    assert await ids("--last", "1000", "--count", "3", "--type", "past.*") == ["1", "other 1", "2"]
    assert await ids("--since", "1h", "--count", "3", "--type", "past.two") == ["other 1", "other 2", "other 3"]
    assert await ids("--from-sequence", str(last - 1), "--count", "2") == ["3", "other 3"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_it_ends_quietly_and_leaves_nothing_behind(
    running: Platform, tmp_path: Path, number: signal.Signals
) -> None:
    tenant = f"leaving-{number.name.lower()}"
    await asyncio.to_thread(running.run, "tenant", "create", tenant, "--tier", "account")
    with await asyncio.to_thread(Following, running, tmp_path, tenant) as following:
        await running.publish(tenant, "order.created", event("1"))
        await asyncio.to_thread(following.until, 1)
        assert [each.config.durable_name for each in await consumers(running, tenant)] == [None]
        following.process.send_signal(number)
        assert await asyncio.to_thread(following.process.wait, PATIENCE) == 0
        assert len((tmp_path / "tail.err").read_text().splitlines()) == 1
    # What it has no time to delete, the server does; that it deletes is told by the tests of following.
    await until(lambda: consumers(running, tenant), lambda found: found == [])


def at_a_terminal(running: Platform, *arguments: str) -> str:
    """What people see who have a hundred columns."""
    terminal, inner = pty.openpty()
    process = subprocess.Popen(
        [TENANTRY, "tail", *arguments, "--data", str(running.up.data)],
        stdout=inner,
        stderr=subprocess.DEVNULL,
        env=dict(os.environ, COLUMNS="100", TERM="xterm"),
    )
    os.close(inner)
    seen = b""
    try:
        while part := os.read(terminal, 4096):
            seen += part
    except OSError:
        # The other side has been closed.
        pass
    finally:
        os.close(terminal)
    assert process.wait(PATIENCE) == 0
    return seen.decode()


async def test_people_see_a_line_that_fits_their_terminal(running: Platform) -> None:
    await running.publish("acme", "wide.load", event("wide", {"text": "x" * 500, "escape": "\x1b[31m"}))
    await running.publish("acme", "wide.load", b"\xff no event at all")
    seen = await asyncio.to_thread(
        at_a_terminal, running, "acme", "--type", "wide.load", "--since", "1h", "--count", "2"
    )
    first, second = seen.splitlines()[:2]
    for part in ("acme", "events", "wide.load", "wide", '{"text": "xxx', "…"):
        assert part in first
    assert len(first) < 120
    assert "\x1b[31m" not in first
    assert "�" in second


def test_what_makes_no_sense_is_refused(running: Platform) -> None:
    assert "expected one of --since" in running.run("tail", "--since", "5m", "--last", "2", status=1)
    assert "expected one TENANT with --from-sequence" in running.run("tail", "--from-sequence", "2", status=1)
    assert "joined by dots, like order.*, got: 'order..x'" in running.run("tail", "--type", "order..x", status=1)
    assert "expected since to be a positive duration" in running.run("tail", "--since", "soon", status=1)
    assert "there is no tenant 'nobody'" in running.run("tail", "nobody", status=1)
    assert "acme has no channel 'none', only events, orders" in running.run(
        "tail", "acme", "--channel", "none", status=1
    )
