"""The audit log tells of every act, and of anybody who changed what it tells."""

from __future__ import annotations

import asyncio
import re

import pytest

from tenantry.errors import AuditBroken
from tenantry.tenants.administration import Administration
from tenantry.tenants.audit import AuditLog
from tenantry.tenants.spec import TenantSpec


async def execute(administration: Administration, statement: str) -> None:
    async with administration.pool.connection() as connection:
        changed = await connection.execute(statement)
        assert changed.rowcount > 0, statement


@pytest.fixture
async def recorded(administration: Administration) -> Administration:
    for number in range(5):
        await administration.put(TenantSpec(id=f"acme-{number}", name=f"Acme {number}"), f"cli:user{number}")
    await administration.suspend("acme-1", "key:1")
    return administration


async def test_acts_are_told_with_actor_before_and_after(recorded: Administration) -> None:
    suspended, created = await recorded.audit.newest(tenant="acme-1")
    assert (suspended.act, suspended.actor) == ("tenant.suspend", "key:1")
    assert suspended.before is not None
    assert suspended.after is not None
    assert (suspended.before["status"], suspended.after["status"]) == ("active", "suspended")
    assert (created.act, created.before) == ("tenant.create", None)
    entries = await recorded.audit.newest(limit=3)
    assert [entry.number for entry in entries] == [6, 5, 4]
    assert [entry.number for entry in await recorded.audit.newest(before=4)] == [3, 2, 1]


async def test_an_untouched_log_is_verified_and_its_seal_can_be_kept(recorded: Administration) -> None:
    seal = await recorded.audit.verify()
    assert seal.number == 6
    await recorded.resume("acme-1", "cli:user")
    assert (await recorded.audit.verify(expected=str(seal))).number == 7


@pytest.mark.parametrize(
    ("statement", "message"),
    [
        ("update tenantry.audit set actor = 'nobody' where number = 3", "row 3 is not what was written"),
        ("update tenantry.audit set act = 'tenant.create' where number = 6", "row 6 is not what was written"),
        ("update tenantry.audit set at = at + interval '1 second' where number = 2", "row 2 is not"),
        ("update tenantry.audit set tenant_id = 'globex' where number = 1", "row 1 is not"),
        ("update tenantry.audit set after = jsonb_set(after, '{plan}', '\"free\"') where number = 4", "row 4 is not"),
        ("update tenantry.audit set before = null where number = 6", "row 6 is not"),
        ("update tenantry.audit set mac = sha256('x') where number = 2", "row 2 is not"),
        ("delete from tenantry.audit where number = 1", "row 1 is missing"),
        ("delete from tenantry.audit where number = 3", "row 3 is missing"),
        ("delete from tenantry.audit where number > 4", "ends at row 4, and its head says 6"),
        ("delete from tenantry.audit", "ends at row 0, and its head says 6"),
        (
            "insert into tenantry.audit select number + 1, at, actor, act, tenant_id, before, after, mac, mac "
            "from tenantry.audit where number = 6",
            "row 7 is not",
        ),
        (
            "update tenantry.audit_head set number = 5, mac = (select mac from tenantry.audit where number = 5)",
            "head says",
        ),
    ],
)
async def test_a_log_that_was_changed_is_found_out(recorded: Administration, statement: str, message: str) -> None:
    await execute(recorded, statement)
    with pytest.raises(AuditBroken, match=message):
        await recorded.audit.verify()


async def test_rows_that_were_cut_off_together_with_the_head_are_found_by_a_seal_that_was_kept(
    recorded: Administration,
) -> None:
    seal = str(await recorded.audit.verify())
    await execute(recorded, "delete from tenantry.audit where number > 4")
    await execute(
        recorded,
        "update tenantry.audit_head set number = 4, mac = (select mac from tenantry.audit where number = 4)",
    )
    assert (await recorded.audit.verify()).number == 4
    with pytest.raises(AuditBroken, match=re.escape(f"ends at row 4 and was expected to contain {seal}")):
        await recorded.audit.verify(expected=seal)


async def test_without_the_master_secret_no_row_can_be_sealed(recorded: Administration) -> None:
    forger = AuditLog(recorded.pool, b"another key")
    async with recorded.pool.connection() as connection, connection.transaction():
        await forger.append(connection, "forger", "tenant.delete", "acme-1")
    with pytest.raises(AuditBroken, match="row 7 is not what was written"):
        await recorded.audit.verify()


async def test_acts_at_the_same_time_are_chained_one_after_the_other(administration: Administration) -> None:
    await asyncio.gather(
        *(administration.put(TenantSpec(id=f"t{number}", channels={"events": None}), "test") for number in range(30))
    )
    assert (await administration.audit.verify()).number == 30


async def test_an_act_that_fails_is_not_recorded(administration: Administration) -> None:
    await administration.put(TenantSpec(id="acme"), "test")
    with pytest.raises(Exception, match="only move up"):
        await administration.move("acme", "pooled", "test")
    with pytest.raises(Exception, match="no plan"):
        await administration.put(TenantSpec(id="acme", plan="gold"), "test")
    assert [entry.act for entry in await administration.audit.newest()] == ["tenant.create"]
