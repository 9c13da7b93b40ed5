"""A tenant is deleted while a relay carries for it."""

from __future__ import annotations

import asyncio
import threading

from tenantry import telemetry
from tenantry.outbox.relay import STEP
from tests.outbox.carrying import Carrying, until

Signals = list[tuple[str, dict[str, object]]]

WAITING_FOR_ROWS = """
    select from pg_stat_activity
    where datname = current_database() and wait_event_type = 'Lock' and wait_event in ('tuple', 'transactionid')
"""


async def test_a_deletion_and_a_relay_do_not_wait_for_each_other(carrying: Carrying, signals: Signals) -> None:
    await carrying.tenant("acme")
    await carrying.tenant("other")
    await carrying.emit("acme", 1)
    about_to_record, may_record = threading.Event(), threading.Event()

    def hold_up(_: telemetry.Signal, fields: telemetry.Fields) -> None:
        if fields["step"] == "save":
            about_to_record.set()
            may_record.wait()

    end = telemetry.subscribe(hold_up, STEP.name)
    try:
        async with carrying.relay():
            await asyncio.to_thread(about_to_record.wait)
            deleting = asyncio.create_task(carrying.administration.delete("acme", "test"))
            await until(lambda: carrying.ask(WAITING_FOR_ROWS), bool)
            may_record.set()
            await deleting
            await carrying.emit("other", 1)
            await carrying.until_arrived("other", 1)
    finally:
        may_record.set()
        end()
    assert "outbox.database_lost" not in [name for name, _ in signals], "the relay had to give up"
