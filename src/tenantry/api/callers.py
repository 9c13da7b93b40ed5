"""Who sends events, remembered for a second: nobody asks the database about the same key a thousand times in it."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import Final

import psycopg

from tenantry.api.access import Doorkeeper
from tenantry.errors import DatabaseError
from tenantry.tenants.principal import Principal

REMEMBER_SECONDS: Final = 1.0
ASK_SECONDS: Final = 3.0
# While the database is away, nobody can revoke a key there either; a broken network is no reason to trust it for ever.
TRUST_SECONDS: Final = 300.0
MOST_REMEMBERED: Final = 10_000


@dataclass(slots=True)
class _Known:
    principal: Principal
    confirmed_at: float
    asked_at: float


class Callers:
    """A key that is revoked is refused after a second at the latest."""

    def __init__(self, doorkeeper: Doorkeeper, *, remember_seconds: float = REMEMBER_SECONDS) -> None:
        self._doorkeeper = doorkeeper
        self._remember_seconds = remember_seconds
        self._known: dict[bytes, _Known] = {}
        self._asking: dict[bytes, asyncio.Task[Principal]] = {}

    def recall(self, authorization: bytes) -> Principal | None:
        """Who it is, if that was found out a moment ago."""
        known = self._known.get(authorization)
        if known is not None and time.monotonic() - known.asked_at < self._remember_seconds:
            return known.principal
        return None

    async def identify(self, authorization: bytes) -> Principal:
        """Ask, once for all who come with the same key at the same time."""
        asking = self._asking.get(authorization)
        if asking is None:
            asking = self._asking[authorization] = asyncio.create_task(self._identify(authorization))
            asking.add_done_callback(lambda _: self._asking.pop(authorization))
        return await asyncio.shield(asking)

    async def _identify(self, authorization: bytes) -> Principal:
        began = time.monotonic()
        try:
            async with asyncio.timeout(ASK_SECONDS):
                principal = await self._doorkeeper.identify(authorization.decode("latin-1"))
        except (psycopg.OperationalError, psycopg.InterfaceError, DatabaseError, TimeoutError) as problem:
            known = self._known.get(authorization)
            if known is None or began - known.confirmed_at > TRUST_SECONDS:
                raise DatabaseError("the database does not say whose key this is") from problem
            known.asked_at = time.monotonic()
            return known.principal
        except BaseException:
            self._known.pop(authorization, None)
            raise
        if len(self._known) >= MOST_REMEMBERED:
            self._known.clear()
        self._known[authorization] = _Known(principal, began, began)
        return principal
