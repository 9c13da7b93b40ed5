"""Locks across processes, on a real database."""

from __future__ import annotations

import asyncio

import psycopg
import pytest

from tenantry.errors import DatabaseUnreachable
from tenantry.postgres.locks import Locks


async def test_one_holds_a_lock_at_a_time_in_one_process_and_across_two(database: str) -> None:
    holders = most = 0
    async with Locks.open(database) as one, Locks.open(database) as other:

        async def work(locks: Locks) -> None:
            nonlocal holders, most
            async with locks.hold("acme"):
                holders += 1
                most = max(most, holders)
                await asyncio.sleep(0.001)
                holders -= 1

        await asyncio.gather(*(work(locks) for locks in (one, other) for _ in range(10)))
    assert most == 1


async def test_locks_of_other_names_are_free(database: str) -> None:
    async with Locks.open(database) as locks, locks.hold("acme"), asyncio.timeout(10), locks.hold("globex"):
        pass


async def test_a_holder_that_lost_its_connection_lets_go_and_can_lock_again(database: str) -> None:
    async with Locks.open(database) as one, Locks.open(database) as other:
        async with one.hold("acme") as lease:
            lease.require()
            async with await psycopg.AsyncConnection.connect(database, autocommit=True) as admin:
                await admin.execute(
                    "select pg_terminate_backend(l.pid) from pg_locks l join pg_database d on d.oid = l.database "
                    "where l.locktype = 'advisory' and d.datname = current_database()"
                )
            # It cannot know by itself, and has to ask before it does what only a holder may.
            async with asyncio.timeout(10), other.hold("acme"), one.hold("another"):
                with pytest.raises(DatabaseUnreachable, match="and with it the lock"):
                    lease.require()
        async with asyncio.timeout(10), one.hold("acme") as lease:
            lease.require()


async def test_who_is_cancelled_while_it_asks_for_a_lock_does_not_keep_it(database: str) -> None:
    async with Locks.open(database) as one, Locks.open(database) as other:

        async def take() -> None:
            async with one.hold("acme"):
                await asyncio.sleep(10)

        for turns in range(40):
            task = asyncio.create_task(take())
            for _ in range(turns):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        async with asyncio.timeout(10), other.hold("acme"):
            pass


async def test_a_lock_is_released_when_the_work_fails(database: str) -> None:
    async with Locks.open(database) as locks:
        with pytest.raises(ZeroDivisionError):
            async with locks.hold("acme"):
                raise ZeroDivisionError
        async with asyncio.timeout(10), locks.hold("acme"):
            pass
