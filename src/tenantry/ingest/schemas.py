"""Schemas for the data of events, by tenant and type: kept in PostgreSQL, and followed in memory within a second."""

from __future__ import annotations

import asyncio
import hashlib
from datetime import datetime
from typing import Any, Final

import msgspec
import psycopg
from psycopg import errors as database_errors
from psycopg.rows import DictRow
from psycopg.types.json import Jsonb

from tenantry.errors import TenantConflict, TenantNotFound
from tenantry.ingest.validator import Validator
from tenantry.postgres.pool import Pool
from tenantry.postgres.queries import SqlFolder
from tenantry.service import end
from tenantry.tenants.audit import AuditLog

MOST_SCHEMAS: Final = 200
REFRESH_SECONDS: Final = 0.5

_sql = SqlFolder("tenantry.ingest")


class Schema(msgspec.Struct, frozen=True, kw_only=True):
    tenant_id: str
    type: str
    schema: dict[str, Any]
    revision: int
    updated_at: datetime


class Schemas:
    """`validator` is for every event, and asks nobody; the rest is for those who look after schemas."""

    def __init__(self, pool: Pool, audit: AuditLog) -> None:
        self._pool = pool
        self._audit = audit
        self._state: tuple[int, int] = (0, 0)
        self._known: dict[tuple[str, str], Schema] = {}
        self._validators: dict[tuple[str, str], Validator] = {}
        self._refreshing = asyncio.Lock()
        self._following: asyncio.Task[None] | None = None

    def validator(self, tenant: str, type: str) -> Validator | None:
        if not self._known:
            return None
        key = (tenant, type)
        found = self._known.get(key)
        if found is None:
            return None
        if key not in self._validators:
            self._validators[key] = Validator(found.schema)
        return self._validators[key]

    async def put(self, tenant: str, type: str, schema: dict[str, Any], actor: str) -> tuple[Schema, bool]:
        """Events of this type must fit from now on; whether there was no schema before."""
        Validator(schema)
        row = {"tenant": tenant, "type": type, "schema": Jsonb(schema)}
        async with self._pool.connection() as connection, connection.transaction():
            counted = await _sql.fetch_one(connection, "count_other_schemas", row)
            if counted and counted["others"] >= MOST_SCHEMAS:
                raise TenantConflict(f"tenant {tenant} has {MOST_SCHEMAS} schemas, and can have no more")
            try:
                written = await _sql.fetch_one(connection, "put_schema", row)
            except database_errors.ForeignKeyViolation:
                raise TenantNotFound(f"there is no tenant {tenant!r}") from None
            assert written is not None
            digest = hashlib.sha256(msgspec.json.encode(schema, order="sorted")).hexdigest()
            after = {"type": type, "sha256": digest}
            await self._audit.append(connection, actor, "schema.put", tenant, after=after)
        await self.refresh()
        return _schema(written), written["is_new"]

    async def delete(self, tenant: str, type: str, actor: str) -> None:
        async with self._pool.connection() as connection, connection.transaction():
            if not await _sql.execute(connection, "delete_schema", {"tenant": tenant, "type": type}):
                raise _missing(tenant, type)
            await self._audit.append(connection, actor, "schema.delete", tenant, before={"type": type})
        await self.refresh()

    async def get(self, tenant: str, type: str) -> Schema:
        async with self._pool.connection() as connection:
            row = await _sql.fetch_one(connection, "find_schema", {"tenant": tenant, "type": type})
        if row is None:
            raise _missing(tenant, type)
        return _schema(row)

    async def list(self, tenant: str) -> list[Schema]:
        async with self._pool.connection() as connection:
            return [_schema(row) for row in await _sql.fetch_all(connection, "schemas_of_tenant", {"tenant": tenant})]

    async def refresh(self) -> None:
        """Read what has changed."""
        async with self._refreshing, self._pool.connection() as connection:
            state = await _sql.fetch_one(connection, "schemas_state")
            assert state is not None
            if (seen := (state["schemas"], state["revisions"])) == self._state:
                return
            rows = await _sql.fetch_all(connection, "schema_revisions")
            revisions = {(row["tenant_id"], row["type"]): row["revision"] for row in rows}
            kept = {key: each for key, each in self._known.items() if revisions.get(key) == each.revision}
            wanted = {"revisions": [revision for key, revision in revisions.items() if key not in kept]}
            fresh = [_schema(row) for row in await _sql.fetch_all(connection, "schemas_by_revision", wanted)]
        self._known = kept | {(each.tenant_id, each.type): each for each in fresh}
        self._validators = {key: each for key, each in self._validators.items() if key in kept}
        self._state = seen

    async def start(self) -> None:
        await self.refresh()
        self._following = asyncio.create_task(self._follow(), name="schemas")

    async def stop(self) -> None:
        if self._following:
            await end([self._following])

    async def _follow(self) -> None:
        while True:
            await asyncio.sleep(REFRESH_SECONDS)
            try:
                await self.refresh()
            except psycopg.Error:
                # What is known goes on to hold; that the database is away, others tell.
                continue


def _schema(row: DictRow) -> Schema:
    return Schema(**{name: row[name] for name in Schema.__struct_fields__})


def _missing(tenant: str, type: str) -> TenantNotFound:
    return TenantNotFound(f"tenant {tenant} has no schema for {type[:80]!r}")
