"""A process that looks after tenants and is killed, by itself and with SIGKILL, when it comes to a certain step."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nats_bulk import Credentials
from tenantry import telemetry
from tenantry.config import Settings
from tenantry.nats.authority import Authority
from tenantry.nats.connections import Broker
from tenantry.nats.keys import Key
from tenantry.tenants.administration import Administration
from tenantry.tenants.assembly import open_administration
from tenantry.tenants.provisioner import STEP
from tenantry.tenants.spec import TenantSpec

# Importing once and forking for each death makes a death cheap.
processes = multiprocessing.get_context("forkserver")
processes.set_forkserver_preload(["tests.tenants.doomed"])


@dataclass(frozen=True)
class Place:
    """What it takes to look after the same tenants from another process."""

    url: str
    platform: Credentials
    system: Credentials
    operator: str
    database_url: str
    secret: str

    def open(self) -> Any:
        return open_administration(
            Settings(data=Path("unused")),
            broker=Broker(self.url, self.platform),
            authority=Authority(Broker(self.url, self.system), Key(self.operator)),
            database_url=self.database_url,
            secret=self.secret,
        )


def die_at(place: Place, step: int, act: str, arguments: tuple[Any, ...]) -> bool:
    """Do it in another process, which is killed when that step is about to be done; whether it came to that step."""
    process = processes.Process(target=_run, args=(place, step, act, arguments))
    process.start()
    process.join(120)
    assert process.exitcode in (0, -signal.SIGKILL), f"{act} ended with {process.exitcode}"
    return process.exitcode != 0


def _run(place: Place, step: int, act: str, arguments: tuple[Any, ...]) -> None:
    passed = 0

    def count(*_: object) -> None:
        nonlocal passed
        if passed == step:
            os.kill(os.getpid(), signal.SIGKILL)
        passed += 1

    telemetry.subscribe(count, STEP.name)
    asyncio.run(_act(place, act, arguments))


async def _act(place: Place, act: str, arguments: tuple[Any, ...]) -> None:
    administration: Administration
    async with place.open() as administration:
        if act == "create":
            await administration.put(TenantSpec(id=arguments[0], tier=arguments[1]), "doomed")
        else:
            await getattr(administration, act)(*arguments, "doomed")
