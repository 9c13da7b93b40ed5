"""The accounts directory: accounts come, change, fail and go without a restart, and none of them harms another."""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from nats.js.api import ConsumerConfig, StreamConfig

from tenantry.config import StaticAccount
from tenantry.errors import AccountInvalid
from tenantry.nats.connections import Broker, connect
from tenantry.service import forever
from tenantry.tenants.account_folder import Account, write_folder
from tenantry.tenants.accounts_directory import FIRST_RETRY_SECONDS, AccountsDirectory
from tenantry.testing import TestPlatform
from tests.processes import PATIENCE
from tests.servers.conftest import StartServer

Seen = list[tuple[str, dict[str, object]]]


class Consumption:
    """What the service was given to run; notes who is at work and who was drained."""

    def __init__(self) -> None:
        self.began: list[Account] = []
        self.running: list[Account] = []
        self.draining: list[Account] = []
        self.drained: list[Account] = []
        self.problems: dict[str, BaseException] = {}
        self.may_drain = asyncio.Event()
        self.may_drain.set()

    async def __call__(self, account: Account, broker: Broker) -> None:
        self.began.append(account)
        if problem := self.problems.get(account.name):
            raise problem
        self.running.append(account)
        try:
            await forever()
        finally:
            self.draining.append(account)
            await self.may_drain.wait()
            self.running.remove(account)
            self.drained.append(account)

    @property
    def names(self) -> set[str]:
        return {account.name for account in self.running}

    def count(self, name: str) -> int:
        return sum(account.name == name for account in self.began)


@pytest.fixture
def consumption() -> Consumption:
    return Consumption()


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    folder = tmp_path / "accounts"
    folder.mkdir()
    return folder


async def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        await asyncio.sleep(0.02)


async def provision(broker: Broker, *names: str) -> None:
    """A stream of that name with a consumer of that name."""
    async with connect(broker, "provision") as client:
        for name in names:
            await client.jetstream().add_stream(StreamConfig(name=name, subjects=[f"{name}.>"]))
            await client.jetstream().add_consumer(name, ConsumerConfig(durable_name=name))


def an_account(name: str) -> Account:
    return Account(name=name, stream=name, consumer=name, tenant_id=name)


def static(name: str) -> StaticAccount:
    return StaticAccount(name=name, stream=name, consumer=name, tenant_id=name)


@asynccontextmanager
async def running(service: AccountsDirectory) -> AsyncIterator[AccountsDirectory]:
    await service.start()
    work = asyncio.ensure_future(service.run())
    try:
        yield service
        assert not work.done()
    finally:
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)
        await service.stop()


def told(signals: Seen, name: str) -> list[dict[str, object]]:
    return [fields for each, fields in signals if each == f"accounts_directory.{name}"]


async def test_folders_that_appear_change_and_go_are_followed_without_a_restart(
    account: Broker, directory: Path, consumption: Consumption, signals: Seen
) -> None:
    await provision(account, "acme", "globex")
    write_folder(directory, an_account("acme"))
    async with running(AccountsDirectory(account, directory, (), consume=consumption)) as service:
        await until(lambda: consumption.names == {"acme"})
        write_folder(directory, an_account("globex"))
        await until(lambda: consumption.names == {"acme", "globex"})
        assert {each.name for each in service.accounts} == {"acme", "globex"}

        async with connect(account, "test") as client:
            await client.jetstream().add_consumer("acme", ConsumerConfig(durable_name="second"))
        write_folder(directory, replace(an_account("acme"), consumer="second"))
        await until(lambda: {each.consumer for each in consumption.running} == {"second", "globex"})
        assert [each.consumer for each in consumption.drained] == ["acme"]

        shutil.rmtree(directory / "globex")
        await until(lambda: consumption.names == {"acme"})
        await until(lambda: len(told(signals, "account.removed")) == 1)
        assert [each.name for each in service.accounts] == ["acme"]
        assert consumption.count("globex") == 1
        assert service.problems == {}
    assert [fields["tenant"] for fields in told(signals, "account.changed")] == ["acme"]
    assert told(signals, "account.removed")[0]["origin"] == str(directory / "globex")
    assert told(signals, "account.failed") == []


async def test_each_account_is_consumed_with_its_own_credentials(platform: TestPlatform, directory: Path) -> None:
    heard: asyncio.Queue[tuple[str, bytes]] = asyncio.Queue()

    async def consume(account: Account, broker: Broker) -> None:
        async with connect(broker, "consume") as client:
            pull = await client.jetstream().pull_subscribe_bind(account.consumer, stream=account.stream)
            for message in await pull.fetch(1, timeout=PATIENCE):
                heard.put_nowait((account.tenant_id, message.data))
            await forever()

    async with platform.account() as ours, platform.account() as theirs:
        for broker, text in ((ours, b"ours"), (theirs, b"theirs")):
            await provision(broker, "events")
            async with connect(broker, "test") as client:
                await client.jetstream().publish("events.a", text)
        account = replace(an_account("events"), name="theirs", tenant_id="theirs", credentials=theirs.credentials)
        write_folder(directory, account)
        write_folder(directory, replace(an_account("events"), name="ours", tenant_id="ours"))
        async with running(AccountsDirectory(ours, directory, (), consume=consume)):
            got = {await asyncio.wait_for(heard.get(), PATIENCE) for _ in range(2)}
    assert got == {("ours", b"ours"), ("theirs", b"theirs")}


async def test_a_folder_that_is_touched_but_says_the_same_goes_on_undisturbed(
    account: Broker, directory: Path, consumption: Consumption
) -> None:
    await provision(account, "acme", "globex")
    write_folder(directory, an_account("acme"))
    async with running(AccountsDirectory(account, directory, (), consume=consumption)):
        await until(lambda: consumption.names == {"acme"})
        (directory / "acme" / "meta.yaml").touch()
        (directory / ".draft").mkdir()
        write_folder(directory, an_account("acme"))
        # Whoever has seen the second folder has seen what was done to the first.
        write_folder(directory, an_account("globex"))
        await until(lambda: consumption.names == {"acme", "globex"})
        assert consumption.count("acme") == 1
        assert consumption.drained == []


async def test_a_broken_folder_is_reported_harms_no_other_and_recovers_when_fixed(
    account: Broker, directory: Path, consumption: Consumption, signals: Seen
) -> None:
    await provision(account, "acme", "globex")
    write_folder(directory, an_account("acme"))
    broken = write_folder(directory, an_account("globex"))
    meta = (broken / "meta.yaml").read_text()
    (broken / "meta.yaml").write_text("name: [")
    async with running(AccountsDirectory(account, directory, (), consume=consumption)) as service:
        await until(lambda: consumption.names == {"acme"} and bool(service.problems))
        assert "expected YAML" in service.problems[str(broken)]
        ((report),) = told(signals, "account.failed")
        assert report["origin"] == str(broken)
        assert str(broken / "meta.yaml") in str(report["reason"])

        (broken / "meta.yaml").write_text(meta)
        await until(lambda: consumption.names == {"acme", "globex"})
        assert service.problems == {}

        (broken / "meta.yaml").write_text("tenant_id: 7")
        await until(lambda: consumption.names == {"acme"})
        assert "globex" in next(iter(service.problems))
        assert consumption.count("acme") == 1


async def test_credentials_that_cannot_be_read_are_reported_and_what_runs_goes_on(
    account: Broker, directory: Path, consumption: Consumption
) -> None:
    await provision(account, "acme", "globex")
    for name in ("acme", "globex"):
        write_folder(directory, an_account(name))
    (directory / "globex" / "user.creds").mkdir()
    async with running(AccountsDirectory(account, directory, (), consume=consumption)) as service:
        await until(lambda: consumption.names == {"acme"} and bool(service.problems))
        assert "user.creds to be a file" in service.problems[str(directory / "globex")]
        (directory / "globex" / "user.creds").rmdir()
        await until(lambda: consumption.names == {"acme", "globex"})
        assert service.problems == {}

        (directory / "globex" / "user.creds").symlink_to("user.creds")
        await until(lambda: "cannot read" in service.problems.get(str(directory / "globex"), ""))
        assert consumption.names == {"acme", "globex"}
        (directory / "globex" / "user.creds").unlink()
        await until(lambda: service.problems == {})
        assert consumption.drained == []


async def test_accounts_of_the_configuration_and_of_the_directory_add_up(
    account: Broker, directory: Path, consumption: Consumption
) -> None:
    await provision(account, "acme", "globex")
    write_folder(directory, an_account("globex"))
    write_folder(directory, replace(an_account("acme"), name="again"))
    async with running(AccountsDirectory(account, directory, [static("acme")], consume=consumption)) as service:
        await until(lambda: consumption.names == {"acme", "globex"})
        assert "taken by configuration (acme)" in service.problems[str(directory / "again")]
        shutil.rmtree(directory / "globex")
        await until(lambda: consumption.names == {"acme"})


async def test_without_a_directory_the_configuration_alone_is_consumed(
    account: Broker, consumption: Consumption
) -> None:
    await provision(account, "acme")
    async with running(AccountsDirectory(account, None, [static("acme")], consume=consumption)) as service:
        await until(lambda: consumption.names == {"acme"})
        assert [each.origin for each in service.accounts] == ["configuration (acme)"]


async def test_a_missing_stream_or_consumer_of_the_configuration_fails_the_start(
    account: Broker, consumption: Consumption
) -> None:
    await provision(account, "acme")
    lost = StaticAccount(name="lost", stream="acme", consumer="nobody", tenant_id="acme")
    service = AccountsDirectory(account, None, [static("acme"), static("globex"), lost], consume=consumption)
    with pytest.raises(AccountInvalid) as problem:
        await service.start()
    await service.stop()
    text = str(problem.value)
    assert "configuration (globex): there is no stream globex for tenant globex; create it" in text
    assert "configuration (lost): there is no consumer nobody on stream acme for tenant acme; create it" in text
    assert consumption.began == []


async def test_credentials_that_the_server_refuses_fail_the_start(
    platform: TestPlatform, account: Broker, tmp_path: Path, consumption: Consumption
) -> None:
    async with platform.account() as gone:
        folder = write_folder(tmp_path, replace(an_account("acme"), credentials=gone.credentials))
    entry = static("acme").model_copy(update={"creds": folder / "user.creds"})
    service = AccountsDirectory(account, None, [entry], consume=consumption)
    with pytest.raises(AccountInvalid, match=r"configuration \(acme\): .*refused"):
        await service.start()
    await service.stop()


async def test_accounts_of_the_configuration_must_differ(account: Broker, consumption: Consumption) -> None:
    service = AccountsDirectory(account, None, [static("acme"), static("acme")], consume=consumption)
    with pytest.raises(AccountInvalid, match="got twice: acme"):
        await service.start()


async def test_a_directory_that_is_not_there_fails_the_start(
    account: Broker, tmp_path: Path, consumption: Consumption
) -> None:
    with pytest.raises(AccountInvalid, match=r"accounts directory .*nowhere: No such file.*create it"):
        await AccountsDirectory(account, tmp_path / "nowhere", (), consume=consumption).start()


async def test_a_folder_whose_stream_is_missing_is_consumed_once_somebody_provisions_it(
    account: Broker, directory: Path, consumption: Consumption, signals: Seen
) -> None:
    await provision(account, "acme")
    write_folder(directory, an_account("acme"))
    late = write_folder(directory, an_account("globex"))
    async with running(AccountsDirectory(account, directory, (), consume=consumption)) as service:
        await until(lambda: consumption.names == {"acme"} and str(late) in service.problems)
        assert f"{late}: there is no stream globex for tenant globex" in service.problems[str(late)]
        assert [each.name for each in service.accounts] == ["acme"]
        await provision(account, "globex")
        await until(lambda: consumption.names == {"acme", "globex"})
        assert service.problems == {}
    assert {fields["origin"] for fields in told(signals, "account.failed")} == {str(late)}


async def test_a_broker_that_is_down_is_waited_for_with_growing_pauses(
    start_server: StartServer, directory: Path, consumption: Consumption, signals: Seen
) -> None:
    server = await start_server("")
    broker = Broker(f"nats://{server.address}")
    await provision(broker, "acme", "globex")
    write_folder(directory, an_account("globex"))
    server.kill()
    async with running(AccountsDirectory(broker, directory, [static("acme")], consume=consumption)) as service:
        await until(lambda: len(told(signals, "account.failed")) >= 6)
        assert consumption.began == []
        assert all("cannot reach NATS" in reason for reason in service.problems.values())
        await server.start()
        await until(lambda: consumption.names == {"acme", "globex"})
        assert service.problems == {}
    for origin in ("configuration (acme)", str(directory / "globex")):
        failed = [each for each in told(signals, "account.failed") if each["origin"] == origin]
        for number, fields in enumerate(failed):
            longest = FIRST_RETRY_SECONDS * 2**number
            assert 0.49 * longest <= float(str(fields["retry_seconds"])) <= 1.01 * longest


@pytest.mark.parametrize("problem", [RuntimeError("the work failed"), asyncio.CancelledError()])
async def test_work_that_fails_is_tried_again_and_others_go_on(
    account: Broker, directory: Path, consumption: Consumption, signals: Seen, problem: BaseException
) -> None:
    await provision(account, "acme", "globex")
    for name in ("acme", "globex"):
        write_folder(directory, an_account(name))
    consumption.problems["globex"] = problem
    async with running(AccountsDirectory(account, directory, (), consume=consumption)) as service:
        await until(lambda: consumption.count("globex") >= 3 and consumption.names == {"acme"})
        await until(lambda: str(directory / "globex") in service.problems)
        consumption.problems.clear()
        await until(lambda: consumption.names == {"acme", "globex"})
        assert service.problems == {}
        assert consumption.count("acme") == 1
    reasons = {str(fields["reason"]) for fields in told(signals, "account.failed")}
    assert all(str(directory / "globex") in reason for reason in reasons)
    assert any("the work failed" in reason or "cancelled itself" in reason for reason in reasons)


async def test_work_is_drained_before_the_same_work_begins_anew(
    account: Broker, directory: Path, consumption: Consumption
) -> None:
    await provision(account, "acme", "globex")
    write_folder(directory, an_account("acme"))
    async with running(AccountsDirectory(account, directory, (), consume=consumption)):
        await until(lambda: consumption.names == {"acme"})
        consumption.may_drain.clear()
        (directory / "acme").rename(directory / "renamed")
        # A slow drain holds up nobody else.
        write_folder(directory, an_account("globex"))
        await until(lambda: consumption.names == {"acme", "globex"})
        assert consumption.count("acme") == 1
        consumption.may_drain.set()
        await until(lambda: consumption.count("acme") == 2)
        assert [each.name for each in consumption.drained] == ["acme"]
        await until(lambda: str(directory / "renamed") in {each.origin for each in consumption.running})


async def test_all_are_drained_on_stop(account: Broker, directory: Path, consumption: Consumption) -> None:
    await provision(account, "acme", "globex")
    write_folder(directory, an_account("globex"))
    write_folder(directory, an_account("missing"))
    async with running(AccountsDirectory(account, directory, [static("acme")], consume=consumption)) as service:
        await until(lambda: consumption.names == {"acme", "globex"})
    assert consumption.running == []
    assert {each.name for each in consumption.drained} == {"acme", "globex"}
    assert service.accounts == ()


async def test_a_drain_that_fails_is_reported_and_one_that_ends_in_peace_is_not(account: Broker, signals: Seen) -> None:
    await provision(account, "acme", "globex")
    began: set[str] = set()

    async def consume(account: Account, broker: Broker) -> None:
        began.add(account.name)
        try:
            await forever()
        except asyncio.CancelledError:
            if account.name == "globex":
                raise RuntimeError("could not finish") from None

    async with running(AccountsDirectory(account, None, [static("acme"), static("globex")], consume=consume)):
        await until(lambda: began == {"acme", "globex"})
    (failed,) = told(signals, "account.failed")
    assert failed["origin"] == "configuration (globex)"
    assert "could not finish (while it was drained)" in str(failed["reason"])


async def test_killing_waits_for_nobody(account: Broker, consumption: Consumption) -> None:
    await provision(account, "acme")
    service = AccountsDirectory(account, None, [static("acme")], consume=consumption)
    async with running(service):
        await until(lambda: consumption.names == {"acme"})
        consumption.may_drain.clear()
        stopping = asyncio.ensure_future(service.stop())
        await until(lambda: len(consumption.draining) == 1)
        service.kill()
        await asyncio.wait_for(stopping, PATIENCE)


async def test_a_directory_that_vanishes_is_reported_and_what_runs_goes_on_until_it_is_back(
    account: Broker, directory: Path, consumption: Consumption, signals: Seen
) -> None:
    await provision(account, "acme", "globex")
    write_folder(directory, an_account("acme"))
    async with running(AccountsDirectory(account, directory, (), consume=consumption)) as service:
        await until(lambda: consumption.names == {"acme"})
        shutil.move(directory, directory.with_name("moved"))
        await until(lambda: str(directory) in service.problems)
        assert "No such file" in service.problems[str(directory)]
        assert consumption.names == {"acme"}
        write_folder(directory, an_account("acme"))
        write_folder(directory, an_account("globex"))
        await until(lambda: consumption.names == {"acme", "globex"})
        assert service.problems == {}
        assert consumption.count("acme") == 1
    assert len(told(signals, "unreadable")) == 1


async def test_a_mounted_secret_that_is_exchanged_by_its_link_is_followed(
    account: Broker, directory: Path, consumption: Consumption
) -> None:
    await provision(account, "acme", "globex")
    write_folder(directory / "..1", an_account("acme"))
    write_folder(directory / "..2", replace(an_account("globex"), name="acme"))
    (directory / "..data").symlink_to("..1")
    (directory / "acme").symlink_to("..data/acme")
    async with running(AccountsDirectory(account, directory, (), consume=consumption)):
        await until(lambda: [each.stream for each in consumption.running] == ["acme"])
        (directory / "..data_new").symlink_to("..2")
        (directory / "..data_new").rename(directory / "..data")
        await until(lambda: [each.stream for each in consumption.running] == ["globex"])
