"""Services and dead letters as workers leave them, and what workers then do with what is asked of them: all by SQL."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import psycopg
from psycopg.rows import dict_row
from psycopg.types.json import Jsonb

PUBLISHED = datetime(2026, 11, 1, 12, tzinfo=UTC)


class Letters:
    def __init__(self, database_url: str) -> None:
        self._database_url = database_url
        self._sequence = 0

    def serve(self, service: str, channel: str = "events", parts: int = 1) -> None:
        self.execute(
            "insert into tenantry.subscriptions (service, app, channel, types, handling_order, parts) "
            "values (%s, 'shop', %s, '{>}', 'fifo', %s)",
            [service, channel, parts],
        )

    def bury(self, tenant: str, service: str = "invoices", **columns: Any) -> UUID:
        """Its id. Sequences rise."""
        self._sequence += 1
        row = {
            "tenant_id": tenant,
            "owner_id": tenant,
            "channel": "events",
            "service": service,
            "sequence": self._sequence,
            "subject": f"tenantry.tenants.{tenant}.events.order.created",
            "payload": b'{"data": {"total": 7}}',
            "reason": "ValueError: no",
            "published_at": PUBLISHED,
            "type": "order.created",
            "event_id": f"event-{self._sequence}",
            "headers": Jsonb({"Nats-Msg-Id": [f"{tenant}/event-{self._sequence}"]}),
            **columns,
        }
        names, values = ", ".join(row), ", ".join(["%s"] * len(row))
        (added,) = self.execute(
            f"insert into tenantry.dead_letters ({names}) values ({values}) returning id", list(row.values())
        )
        return UUID(str(added["id"]))

    def with_job(self, job: UUID | None) -> list[UUID]:
        """What is asked of workers, in the order in which they do it."""
        found = self.execute("select id from tenantry.dead_letters where job = %s order by sequence", [job])
        return [each["id"] for each in found]

    def left(self) -> list[UUID]:
        return [each["id"] for each in self.execute("select id from tenantry.dead_letters order by sequence")]

    def handle(self, id: UUID) -> None:
        """As a worker does with success; at the last one, its job is done."""
        self.execute(
            "with gone as (delete from tenantry.dead_letters where id = %s returning job) "
            "update tenantry.subscription_jobs j set done = done + 1, updated_at = clock_timestamp(), "
            "state = case when done + failed + 1 = total then 'done' else state end from gone where j.id = gone.job",
            [id],
        )

    def fail(self, id: UUID, reason: str) -> None:
        self.execute(
            "with failed as (update tenantry.dead_letters d set reason = %s, job = null, deliveries = d.deliveries + 1 "
            "from tenantry.dead_letters was where d.id = %s and was.id = d.id returning was.job) "
            "update tenantry.subscription_jobs j set failed = failed + 1, updated_at = clock_timestamp(), "
            "state = case when done + failed + 1 = total then 'done' else state end from failed f where j.id = f.job",
            [reason, id],
        )

    def execute(self, statement: str, values: list[Any] | None = None) -> list[dict[str, Any]]:
        with psycopg.connect(self._database_url, autocommit=True, row_factory=dict_row) as connection:
            cursor = connection.execute(statement.encode(), values)
            return cursor.fetchall() if cursor.description else []
