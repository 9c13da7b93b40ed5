"""Moves between tiers, as the registry records them: where each lane was, where it is going, and how far it got."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Any
from uuid import UUID

import msgspec
from psycopg.types.json import Jsonb

from tenantry.errors import TenantConflict
from tenantry.postgres.pool import Pool
from tenantry.postgres.queries import Connection, SqlFolder
from tenantry.tenants.tenant import Tier

_sql = SqlFolder("tenantry.tenants")


class Stage(StrEnum):
    COPYING = "copying"
    """The new streams follow the old ones; producers notice nothing."""
    CUTTING = "cutting"
    """The old streams take nothing more; the new ones catch up and take over."""
    SWITCHED = "switched"
    """The new lanes are the tenant's; the old ones are to be erased."""
    DONE = "done"
    ABANDONING = "abandoning"
    """Somebody gave the move up; the copies are to be erased."""
    ABANDONED = "abandoned"
    """The copies are gone; the tenant is where it was."""


class LaneMove(msgspec.Struct, kw_only=True):
    """One channel's way. Every event keeps its sequence; `resumes_at` is the first that a new event can have."""

    channel: str
    from_stream: str
    to_stream: str
    pool: int | None = None
    last: int = 0
    """The newest sequence in the old stream."""
    resumes_at: int = 0
    """Whoever has read the old stream to its end, or beyond `last` in a shared one, goes on here."""


class Move(msgspec.Struct, frozen=True, kw_only=True):
    id: UUID
    tenant_id: str
    from_tier: Tier
    to_tier: Tier
    stage: Stage
    lanes: list[LaneMove]
    problem: str
    """Why it does not get on, if it does not; it is tried again by itself."""
    started_at: datetime
    finished_at: datetime | None

    def describe(self) -> dict[str, Any]:
        document: dict[str, Any] = msgspec.to_builtins(self)
        return document


class MoveStore:
    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    async def unfinished(self, tenant: str, connection: Connection | None = None) -> Move | None:
        return await self._one("find_move", tenant, connection)

    async def newest(self, tenant: str, connection: Connection | None = None) -> Move | None:
        return await self._one("newest_move", tenant, connection)

    async def start(
        self, connection: Connection, tenant: str, from_tier: Tier, to_tier: Tier, lanes: list[LaneMove]
    ) -> Move:
        row = await _sql.fetch_one(
            connection,
            "start_move",
            {"tenant_id": tenant, "from_tier": from_tier, "to_tier": to_tier, "lanes": _json(lanes)},
        )
        assert row is not None
        return _move(row)

    async def advance(self, move: Move, stage: Stage, connection: Connection | None = None) -> Move:
        """Record how far it got, and where the lanes go on; a crash from here on goes on from here."""
        if connection is None:
            async with self._pool.connection() as own:
                return await self.advance(move, stage, own)
        changes = {"id": move.id, "stage": stage, "expected": move.stage, "lanes": _json(move.lanes)}
        if not await _sql.execute(connection, "advance_move", changes):
            raise TenantConflict(f"the move of tenant {move.tenant_id} was carried on, or given up, by somebody else")
        return msgspec.structs.replace(move, stage=stage)

    async def mark_failed(self, move: Move, problem: str) -> None:
        async with self._pool.connection() as connection:
            await _sql.execute(connection, "fail_move", {"id": move.id, "problem": problem})

    async def all_unfinished(self) -> set[str]:
        """The tenants that are being moved."""
        async with self._pool.connection() as connection:
            return {row["tenant_id"] for row in await _sql.fetch_all(connection, "unfinished_moves")}

    async def _one(self, query: str, tenant: str, connection: Connection | None) -> Move | None:
        if connection is None:
            async with self._pool.connection() as own:
                return await self._one(query, tenant, own)
        row = await _sql.fetch_one(connection, query, {"tenant_id": tenant})
        return _move(row) if row else None


def _move(row: dict[str, Any]) -> Move:
    own = {name: row[name] for name in Move.__struct_fields__}
    return Move(
        **own
        | {
            "from_tier": Tier(row["from_tier"]),
            "to_tier": Tier(row["to_tier"]),
            "stage": Stage(row["stage"]),
            "lanes": msgspec.convert(row["lanes"], list[LaneMove]),
        }
    )


def _json(lanes: list[LaneMove]) -> Jsonb:
    return Jsonb(msgspec.to_builtins(lanes))
