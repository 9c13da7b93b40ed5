"""Streams that others provisioned are handled by the same subscribers."""

from __future__ import annotations

from pathlib import Path

from nats.js.api import ConsumerConfig

from tenantry.application import Context, Event, Tenantry
from tenantry.nats.connections import Broker, connect
from tenantry.tenants.accounts_directory import AccountsDirectory
from tests.subscriptions.working import Seen, Working, document, until


async def provision(broker: Broker, stream: str) -> None:
    async with connect(broker, "others") as client:
        jetstream = client.jetstream()
        await jetstream.add_stream(name=stream, subjects=[f"{stream.lower()}.>"])
        await jetstream.add_consumer(stream, ConsumerConfig(durable_name="tenantry", ack_wait=30))


async def publish(broker: Broker, stream: str, *documents: bytes) -> None:
    async with connect(broker, "others") as client:
        for each in documents:
            await client.jetstream().publish(f"{stream.lower()}.orders", each)


def write_folder(directory: Path, tenant: str, stream: str) -> Path:
    folder = directory / tenant
    folder.mkdir()
    (folder / "meta.yaml").write_text(f"name: {tenant}\nstream: {stream}\nconsumer: tenantry\ntenant_id: {tenant}\n")
    return folder


async def test_an_accounts_events_reach_the_subscribers_as_the_tenant_that_its_folder_names(
    working: Working, account: Broker, tmp_path: Path
) -> None:
    directory = tmp_path / "accounts"
    directory.mkdir()
    await provision(account, "ORDERS")
    await working.tenant("acme")
    app, seen, others = Tenantry("shop"), Seen(), Seen()
    app.subscriber("orders", types=["order.*"], retries=1, backoff=0.02)(seen)

    @app.subscriber("all", batch=10)
    async def handle(events: list[Event[int]], context: Context) -> None:
        for event in events:
            others.add(event, context)

    await publish(account, "ORDERS", *(document("liar", number, tenantid="acme") for number in range(1, 21)))
    async with working.worker(
        app, accounts=lambda consume: AccountsDirectory(account, directory, (), consume=consume)
    ) as worker:
        folder = write_folder(directory, "outsider", "ORDERS")
        await until(lambda: seen.count == 20 and others.count == 20)
        assert seen.numbers == {"outsider": list(range(1, 21))}
        assert {context.service for context in seen.contexts} == {"orders"}
        await working.publish("acme", 3)
        await until(lambda: seen.count == 23)
        await publish(account, "ORDERS", b"no event")

        async def buried() -> bool:
            return bool(await working.rows("select 1 from tenantry.dead_letters"))

        await until(buried)
        (row,) = await working.rows("select tenant_id, owner_id, service, channel from tenantry.dead_letters")
        assert row == ("outsider", None, "accounts", "ORDERS")
        (folder / "meta.yaml").unlink()
        folder.rmdir()
        await until(lambda: all(partition.service != "accounts" for partition in worker.holdings))
        await publish(account, "ORDERS", document("outsider", 99))
        await working.publish("acme", 2)
        await until(lambda: seen.count == 25)
    assert 99 not in seen.numbers["outsider"]


async def test_two_workers_share_the_accounts_and_keep_each_in_order(
    working: Working, account: Broker, tmp_path: Path
) -> None:
    directory = tmp_path / "accounts"
    directory.mkdir()
    streams = {f"tenant-{number}": f"S{number}" for number in range(6)}
    for tenant, stream in streams.items():
        await provision(account, stream)
        write_folder(directory, tenant, stream)
        await publish(account, stream, *(document(tenant, number) for number in range(1, 11)))
    app, seen, failed = Tenantry("shop"), Seen(), set[tuple[str, int]]()

    @app.subscriber("orders", retries=3, backoff=0.02)
    async def handle(event: Event[int], context: Context) -> None:
        if event.data % 4 == 0 and (event.tenant, event.data) not in failed:
            failed.add((event.tenant, event.data))
            raise RuntimeError("once more")
        seen.add(event, context)

    def accounts(consume: object) -> AccountsDirectory:
        return AccountsDirectory(account, directory, (), consume=consume)  # type: ignore[arg-type]

    async with (
        working.worker(app, id="one", accounts=accounts) as one,
        working.worker(app, id="two", accounts=accounts) as two,
    ):
        await until(lambda: seen.count == 60)
        await until(lambda: len(one.holdings) + len(two.holdings) == 6)
    assert seen.numbers == {tenant: list(range(1, 11)) for tenant in streams}
