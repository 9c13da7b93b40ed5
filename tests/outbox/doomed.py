"""A relay in a process of its own that is killed, by itself and with SIGKILL, when it comes to a certain step."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import signal
from dataclasses import dataclass

from tenantry import telemetry
from tenantry.config import Settings
from tenantry.nats.connections import connect_bulk
from tenantry.outbox.relay import STEP
from tenantry.outbox.service import RelayService
from tenantry.tenants.administration import Administration
from tenantry.tenants.lanes import Lane
from tenantry.tenants.roster import Roster
from tests.tenants.doomed import Place, processes

processes.set_forkserver_preload(["tests.outbox.doomed"])

UNFINISHED = """
    select from tenantry.outbox_cursors c
    join tenantry.outbox o on o.lane = c.lane and (o.ticket, o.id) > (c.ticket, c.id)
    limit 1
"""


@dataclass(frozen=True)
class AtStep:
    """Die at the step of this number, counted from 0."""

    number: int

    def has_come(self, passed: int, _: str) -> bool:
        return passed == self.number


@dataclass(frozen=True)
class Unrecorded:
    """Die before cursors are moved, once so many messages are in the lane's stream."""

    lane: Lane
    messages: int

    def has_come(self, _: int, step: str) -> bool:
        if step != "save":
            return False
        with connect_bulk(self.lane.broker, "test") as connection:
            info = json.loads(connection.request(f"$JS.API.STREAM.INFO.{self.lane.stream}", b""))
        return bool(info["state"]["messages"] >= self.messages)


Death = AtStep | Unrecorded


def carry_until(place: Place, death: Death) -> bool:
    """Carry what was emitted, and die on the way; whether it came to that, rather than to the end of the work."""
    process = processes.Process(target=_run, args=(place, death))
    process.start()
    process.join(120)
    assert process.exitcode in (0, -signal.SIGKILL), f"the relay ended with {process.exitcode}"
    return process.exitcode != 0


def _run(place: Place, death: Death) -> None:
    passed = itertools.count()

    def look(_: telemetry.Signal, fields: telemetry.Fields) -> None:
        if death.has_come(next(passed), fields["step"]):
            os.kill(os.getpid(), signal.SIGKILL)

    telemetry.subscribe(look, STEP.name)
    asyncio.run(_carry(place))


async def _carry(place: Place) -> None:
    administration: Administration
    async with place.open() as administration:
        roster = Roster(administration.registry, administration.lanes)
        await roster.start()
        relay = RelayService(place.database_url, roster, administration.lanes, Settings())
        await relay.start()
        while await _is_unfinished(administration):
            await asyncio.sleep(0.02)
        await relay.stop()


async def _is_unfinished(administration: Administration) -> bool:
    async with administration.pool.connection() as connection:
        return await (await connection.execute(UNFINISHED)).fetchone() is not None
