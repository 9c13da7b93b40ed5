"""The relay as a service: a thread of its own beside the event loop."""

from __future__ import annotations

import asyncio

from tenantry.config import Settings
from tenantry.outbox.relay import Relay
from tenantry.tenants.lanes import Lanes
from tenantry.tenants.roster import Roster


class RelayService:
    name = "relay"

    def __init__(self, url: str, roster: Roster, lanes: Lanes, settings: Settings) -> None:
        self._roster = roster
        self._loop: asyncio.AbstractEventLoop | None = None
        self._running: asyncio.Future[None] | None = None
        self._relay = Relay(
            url,
            roster,
            attempts=settings.outbox_attempts,
            is_replicated=lambda tenant: lanes.replicas(tenant) > 1,
            refresh=self._refresh_roster,
        )

    async def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._running = asyncio.ensure_future(asyncio.to_thread(self._relay.run))

    async def run(self) -> None:
        assert self._running is not None
        # Cancelling this is no reason to drop what is on its way: `stop` lets it end.
        await asyncio.shield(self._running)

    async def stop(self) -> None:
        self.kill()
        if self._running is not None:
            await self._running

    def kill(self) -> None:
        self._relay.stop()

    def _refresh_roster(self) -> None:
        """From the relay's thread."""
        if self._loop is not None and not self._loop.is_closed():
            asyncio.run_coroutine_threadsafe(self._roster.refresh(), self._loop)
