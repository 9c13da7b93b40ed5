"""Finishes what was begun and not completed, and puts drift right, for as long as the platform runs."""

from __future__ import annotations

import asyncio
import time
from typing import Final

import psycopg

from tenantry.errors import TenantryError
from tenantry.telemetry import signal
from tenantry.tenants.administration import Administration

FAILED = signal(
    "tenants.reconcile.failed", "Work for a tenant could not be finished; it is tried again.", "tenant", "error",
    level="warning",
)  # fmt: skip

LOOK_SECONDS: Final = 1.0
DRIFT_SECONDS: Final = 60.0


class Reconciler:
    """A service. Several may run: each tenant is worked on by one of them at a time."""

    name = "reconciler"

    def __init__(self, administration: Administration, *, look: float = LOOK_SECONDS, drift: float = DRIFT_SECONDS):
        self._administration = administration
        self._look = look
        self._drift = drift
        self._working: dict[str, asyncio.Task[None]] = {}

    async def start(self) -> None:
        pass

    async def run(self) -> None:
        next_drift = time.monotonic() + self._drift
        while True:
            try:
                await self._begin_all()
                if time.monotonic() >= next_drift:
                    await self._administration.drift.repair()
                    next_drift = time.monotonic() + self._drift
            except (TenantryError, psycopg.Error, TimeoutError) as problem:
                # The servers may be away for a while; what is recorded waits.
                FAILED.emit(tenant=None, error=problem)
            await asyncio.sleep(self._look)

    async def finish_all(self) -> None:
        """One round over all that is unfinished and due, to its end."""
        await self._begin_all()
        await asyncio.gather(*self._working.values())

    async def stop(self) -> None:
        # Whatever is broken off here is carried on by whoever looks next.
        for task in self._working.values():
            task.cancel()
        await asyncio.gather(*self._working.values(), return_exceptions=True)

    def kill(self) -> None:
        pass

    async def _begin_all(self) -> None:
        """A tenant whose work takes long, such as a move, holds up no other."""
        for tenant in await self._administration.registry.unfinished():
            if tenant not in self._working:
                self._working[tenant] = asyncio.create_task(self._finish(tenant))

    async def _finish(self, tenant: str) -> None:
        try:
            await self._administration.mover.carry_on(tenant)
            await self._administration.provisioner.converge(tenant)
        except (TenantryError, psycopg.Error, TimeoutError) as problem:
            FAILED.emit(tenant=tenant, error=problem)
        finally:
            del self._working[tenant]
