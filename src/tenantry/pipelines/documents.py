"""Documents of projections, for those who read them: one tenant's at a time, and the database itself holds to it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime
from typing import Any

import msgspec
from psycopg.rows import DictRow

from tenantry.postgres.pool import Pool
from tenantry.postgres.queries import Connection, SqlFolder

_sql = SqlFolder("tenantry.pipelines")


class Document(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    projection: str
    generation: int
    """Another one after each rebuild."""
    document: msgspec.Raw
    """JSON, as the database has it."""
    sequence: int
    """The last event that was applied to it."""
    updated_at: datetime


class Documents:
    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    async def find(self, tenant: str, projection: str, id: str) -> Document | None:
        async with self._serving(tenant, projection) as (connection, served):
            row = await _sql.fetch_one(connection, "find_document", served | {"id": id})
        return _document(row) if row else None

    async def list(self, tenant: str, projection: str, after: str | None, limit: int) -> list[Document]:
        """Those whose ids come after `after`, by id."""
        async with self._serving(tenant, projection) as (connection, served):
            rows = await _sql.fetch_all(connection, "page_documents", served | {"after": after, "limit": limit})
        return [_document(row) for row in rows]

    @asynccontextmanager
    async def _serving(self, tenant: str, projection: str) -> AsyncIterator[tuple[Connection, dict[str, Any]]]:
        """A transaction that sees the documents of this tenant and of no other, and which of them are served."""
        served: dict[str, Any] = {"tenant": tenant, "projection": projection}
        async with self._pool.connection() as connection, connection.transaction():
            # A rebuild that ends meanwhile takes away the generation that was served until then.
            await _sql.execute(connection, "serve_from_one_moment")
            rows = await _sql.fetch_all(connection, "served_generations", served)
            row = await _sql.fetch_one(connection, "serve_as_tenant", served)
            if row and row["needs_role"]:
                await _sql.execute(connection, "serve_as_reader")
            columns = {"channels": [row["channel"] for row in rows], "generations": [row["generation"] for row in rows]}
            yield connection, served | columns


def _document(row: DictRow) -> Document:
    return Document(**row | {"document": msgspec.Raw(row["document"].encode())})
