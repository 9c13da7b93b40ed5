"""Finishes what was begun and not completed, and puts drift right, for as long as the platform runs."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from tenantry.service import end, side_by_side
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
        await side_by_side(
            self._repeat(self._look, self._begin_all),
            self._repeat(self._drift, self._administration.drift.repair),
        )

    async def _repeat(self, seconds: float, work: Callable[[], Awaitable[object]]) -> None:
        while True:
            await asyncio.sleep(seconds)
            try:
                await work()
            except Exception as problem:
                # The servers may be away for a while; what is on record waits. Nothing of this may end the platform.
                FAILED.emit(tenant=None, error=problem)

    async def finish_all(self) -> None:
        """One round over all that is unfinished and due, to its end."""
        await self._begin_all()
        await asyncio.gather(*self._working.values())

    async def stop(self) -> None:
        # Whatever is broken off here is carried on by whoever looks next.
        await end(list(self._working.values()))

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
        except Exception as problem:
            FAILED.emit(tenant=tenant, error=problem)
        finally:
            del self._working[tenant]
