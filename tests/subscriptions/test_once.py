"""Effects that happen once, in the database in which they are had."""

from __future__ import annotations

from typing import Any

import asyncpg  # type: ignore[import-untyped]
import psycopg
import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.ext.asyncio import create_async_engine

from tenantry.application import Context, Event, Tenantry
from tenantry.errors import WorkerFenced
from tenantry.outbox.upkeep import Upkeep
from tenantry.postgres.migrations import ensure_schema
from tenantry.subscriptions.once import remember
from tests.subscriptions.working import Working, until


def a_context(event: str = "1", *, tenant: str = "acme", fence: int = 5, service: str = "orders") -> Context:
    return Context(
        service=service,
        tenant=tenant,
        channel="events",
        subject="",
        sequence=1,
        attempt=1,
        stored_at=0,
        fence=fence,
        event_id=event,
        remember=remember,
    )


@pytest.fixture
async def own_database(database: str) -> str:
    """An application's own: it has no more than the outbox."""
    await ensure_schema(database, may_migrate=True, outbox_only=True)
    return database


async def test_it_is_the_first_time_once_and_a_rollback_takes_it_back(own_database: str) -> None:
    async with await psycopg.AsyncConnection.connect(own_database) as connection:
        assert await a_context().once(connection) is True
        await connection.rollback()
        assert await a_context().once(connection) is True
        await connection.commit()
        assert await a_context().once(connection) is False
        assert await a_context("2").once(connection) is True
        assert await a_context(tenant="globex").once(connection) is True
        assert await a_context(service="mails").once(connection) is True


async def test_a_worker_that_has_been_replaced_has_no_effects(own_database: str) -> None:
    async with await psycopg.AsyncConnection.connect(own_database) as connection:
        assert await a_context("1", fence=5).once(connection)
        assert await a_context("2", fence=9).once(connection)
        await connection.commit()
        with pytest.raises(WorkerFenced, match="another worker handles the events of tenant acme"):
            await a_context("3", fence=5).once(connection)
        await connection.rollback()
        assert await a_context("3", tenant="globex", fence=5).once(connection)


async def test_every_driver_can_be_asked(own_database: str) -> None:
    with psycopg.connect(own_database) as connection:
        assert a_context("sync").once(connection) is True
    driver: Any = await asyncpg.connect(own_database)
    try:
        assert await a_context("asyncpg").once(driver) is True
    finally:
        await driver.close()
    engine = create_engine(own_database.replace("postgresql://", "postgresql+psycopg://"))
    with engine.begin() as session:
        assert a_context("sqlalchemy").once(session) is True
        assert session.execute(text("select count(*) from tenantry.handled")).scalar_one() == 3
    engine.dispose()
    asynchronous = create_async_engine(own_database.replace("postgresql://", "postgresql+psycopg://"))
    async with asynchronous.begin() as session:
        assert await a_context("sqlalchemy").once(session) is False
    await asynchronous.dispose()


async def test_in_a_batch_the_event_is_named(own_database: str) -> None:
    context = a_context("")
    with psycopg.connect(own_database) as connection:
        with pytest.raises(ValueError, match="which event of the batch"):
            context.once(connection)
        event = Event[Any](id="7", source="/test", type="a.b")
        assert context.once(connection, event) is True
        assert context.once(connection, event) is False


async def test_what_is_remembered_goes_with_its_tenant_and_after_its_time(working: Working) -> None:
    await working.tenant("acme")
    await working.publish("acme", 5)
    app, firsts, url = Tenantry("shop"), list[bool](), str(working.administration.pool.conninfo)

    @app.subscriber("orders")
    async def handle(event: Event[int], context: Context) -> None:
        async with await psycopg.AsyncConnection.connect(url) as connection:
            firsts.append(await context.once(connection))

    async with working.worker(app):
        await until(lambda: len(firsts) == 5)
    count = "select count(*) from tenantry.handled"
    upkeep = Upkeep(url, keep=3600, stall_seconds=60, once_keep=3600)
    await upkeep.work()
    assert await working.rows(count) == [(5,)]
    await working.rows(
        "update tenantry.handled set handled_at = now() - interval '2 hours' where event_id = 'acme-1' returning 1"
    )
    await upkeep.work()
    assert await working.rows(count) == [(4,)]
    await working.administration.delete("acme", "test")
    assert await working.rows(count) == [(0,)]
    assert await working.rows("select count(*) from tenantry.fences") == [(0,)]
