"""A link that is made anew whenever it breaks, to whichever server takes us."""

from __future__ import annotations

import asyncio
import random
from typing import Final

from nats_bulk import parse_addresses
from tenantry.nats.connections import Broker
from tenantry.nats.link import Link, Listener
from tenantry.service import end

FIRST_PAUSE: Final = 0.05
LONGEST_PAUSE: Final = 1.0


class KeptLink(Listener):
    """Begins to connect at once; `linked` and `unlinked` tell of it."""

    def __init__(self, broker: Broker, name: str) -> None:
        self._broker = broker
        self._name = name
        self._servers = parse_addresses(broker.url)
        self._loop = asyncio.get_running_loop()
        self._link: Link | None = None
        self._ended = asyncio.Event()
        self._tried: asyncio.Future[None] = self._loop.create_future()
        self._keeping = asyncio.create_task(self._keep_linked(), name=f"{name} link")

    def linked(self) -> None:
        raise NotImplementedError

    def unlinked(self, reason: str) -> None:
        """It broke, or could not be made; told once, until it is there again."""
        raise NotImplementedError

    async def is_linked(self) -> bool:
        """Whether there is a connection; while the first is being made, it is waited for."""
        if self._link is None and not self._tried.done():
            await asyncio.shield(self._tried)
        return self._link is not None

    async def close(self) -> None:
        await end([self._keeping])
        self._has_tried()
        if self._link is not None:
            self._link.abort("the connection was closed")
            self._link = None

    def lost(self, reason: str) -> None:
        if self._link is not None:
            self._learn_peers(self._link)
        self._link = None
        if not self._keeping.done():
            self.unlinked(reason)
        self._ended.set()

    async def _keep_linked(self) -> None:
        pause = FIRST_PAUSE
        while True:
            problem = await self._link_anywhere()
            if problem is None:
                pause = FIRST_PAUSE
                await self._ended.wait()
                continue
            if pause == FIRST_PAUSE:
                self.unlinked(str(problem))
            self._has_tried()
            await asyncio.sleep(pause * random.uniform(0.5, 1.0))
            pause = min(pause * 2, LONGEST_PAUSE)

    async def _link_anywhere(self) -> Exception | None:
        """Try each server once; why the last did not take us, if none did."""
        problem: Exception | None = None
        for _ in range(len(self._servers)):
            try:
                link = await Link.open(self._broker, self._servers[0], self._name, self)
            except Exception as refused:
                # Whatever it is, credentials that are none among it: it is tried again, and told.
                problem = refused
                self._servers.append(self._servers.pop(0))
                continue
            self._ended.clear()
            self._link = link
            self._has_tried()
            self.linked()
            return None
        return problem

    def _has_tried(self) -> None:
        if not self._tried.done():
            self._tried.set_result(None)

    def _learn_peers(self, link: Link) -> None:
        known = {(each.host, each.port) for each in self._servers}
        for peer in (self._servers[0].peer(place) for place in link.peers):
            if (peer.host, peer.port) not in known:
                self._servers.append(peer)
