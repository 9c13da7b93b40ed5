"""An outbox in an application's own database learns from here which tenants there are, and which are gone."""

from __future__ import annotations

import asyncio
from typing import Final, NamedTuple
from uuid import UUID

import psycopg

from tenantry.errors import DatabaseUnreachable
from tenantry.postgres.pool import connect
from tenantry.postgres.queries import Connection, SqlFolder
from tenantry.telemetry import signal
from tenantry.tenants.roster import Roster
from tenantry.tenants.tenant import Status

FOLLOWED = signal("outbox.lanes_followed", "The outbox learnt of lanes, or forgot some.", "opened", "erased")
EMPTY = signal(
    "outbox.registry_empty",
    "The registry has no tenants, but the outbox has lanes: is it the right database? Nothing is erased.",
    "lanes",
    level="warning",
)
FAILED = signal("outbox.following_failed", "The outbox could not follow the registry.", "error", level="warning")

FOLLOW_SECONDS: Final = 0.5
SURE_SECONDS: Final = 60.0

_sql = SqlFolder("tenantry.outbox")


class LaneState(NamedTuple):
    tenant_uid: UUID
    is_open: bool
    is_suspended: bool
    payload: int


Lanes = dict[tuple[str, str], LaneState]


class LaneFollower:
    """A service, for an outbox that is not in the platform's database: there, triggers do it."""

    name = "outbox lanes"

    def __init__(self, url: str, roster: Roster) -> None:
        self._url = url
        self._roster = roster
        self._seen = -1
        self._followed_at = 0.0

    async def start(self) -> None:
        await self.follow()

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(FOLLOW_SECONDS)
            if self._seen == self._roster.changes and loop.time() - self._followed_at < SURE_SECONDS:
                continue
            try:
                await self.follow()
            except (psycopg.Error, DatabaseUnreachable) as problem:
                FAILED.emit(error=problem)

    async def stop(self) -> None:
        pass

    def kill(self) -> None:
        pass

    async def follow(self) -> None:
        """Make the outbox's lanes those of the registry."""
        seen = self._roster.changes
        async with connect(self._url, autocommit=True) as connection:
            wanted, there = self._wanted(), await self._there(connection)
            if there and not wanted:
                # Rather the wrong database than that all tenants are gone: nothing may be erased for that.
                EMPTY.emit(lanes=len(there))
                return
            changed = [(*key, *state) for key, state in wanted.items() if there.get(key) != state]
            # A tenant that was made again under its old id is another one.
            gone = [key for key, state in there.items() if key not in wanted or wanted[key][0] != state[0]]
            if gone:
                tenants, channels = zip(*gone, strict=True)
                async with connection.transaction():
                    await _sql.execute(connection, "lock_turns", {"tenants": list(tenants)})
                    await _sql.execute(
                        connection, "erase_lanes", {"tenants": list(tenants), "channels": list(channels)}
                    )
            if changed:
                names = ("tenants", "channels", "uids", "open", "suspended", "payloads")
                columns = zip(*changed, strict=True)
                parameters = {name: list(column) for name, column in zip(names, columns, strict=True)}
                await _sql.execute(connection, "put_lanes", parameters)
        if changed or gone:
            FOLLOWED.emit(opened=len(changed), erased=len(gone))
        self._seen, self._followed_at = seen, asyncio.get_running_loop().time()

    def _wanted(self) -> Lanes:
        return {
            (tenant.id, channel.name): LaneState(
                tenant.uid,
                tenant.status != Status.DELETING and not channel.removing,
                tenant.status == Status.SUSPENDED,
                tenant.limits.payload,
            )
            for tenant in self._roster
            for channel in tenant.channels
        }

    @staticmethod
    async def _there(connection: Connection) -> Lanes:
        rows = await _sql.fetch_all(connection, "outbox_lanes")
        return {
            (row["tenant_id"], row["channel"]): LaneState(
                row["tenant_uid"], row["is_open"], row["is_suspended"], row["payload"]
            )
            for row in rows
        }
