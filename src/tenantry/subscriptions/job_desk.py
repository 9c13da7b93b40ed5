"""Redrives, discards, replays and rewinds as they are asked for; the workers that hold the tenants do them."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Literal
from uuid import UUID

import msgspec
from psycopg.types.json import Jsonb

from tenantry.errors import TenantConflict, TenantInvalid, TenantNotFound
from tenantry.postgres.queries import Connection, SqlFolder
from tenantry.subscriptions.id_prefix import ids_from
from tenantry.subscriptions.nudging import nudge_workers
from tenantry.tenants.administration import Administration

Reread = Literal["replay", "rewind"]
"""replay: events are handled again beside those that come in; rewind: the service itself goes back."""

_sql = SqlFolder("tenantry.subscriptions")


class SubscriptionJob(msgspec.Struct, frozen=True, kw_only=True):
    id: UUID
    kind: Literal["redrive", "discard", "replay", "rewind"]
    service: str
    tenant_id: str | None
    """None: of several tenants, or of one that the registry does not know."""
    request: dict[str, Any]
    state: Literal["running", "cancelling", "cancelled", "done", "failed"]
    done: int
    failed: int
    """Of `total`, as are those that are done."""
    total: int | None
    problem: str
    asked_by: str
    asked_at: datetime
    updated_at: datetime

    @property
    def has_ended(self) -> bool:
        return self.state in ("cancelled", "done", "failed")

    @property
    def is_waiting(self) -> bool:
        """Whether nobody has begun with it, as far as can be seen."""
        return self.state == "running" and self.updated_at == self.asked_at

    @property
    def title(self) -> str:
        return f"{self.kind} for {self.service}" + (f" of {self.tenant_id}" if self.tenant_id else "")

    @property
    def unit(self) -> str:
        return "dead letters" if self.kind in ("redrive", "discard") else "events"


class SubscriptionJobDesk:
    listing = "tenantry subscription jobs"
    nobody = (
        "No worker has begun yet: `tenantry serve worker` or `tenantry up` starts one, unless the service is paused "
        "for the tenant (`tenantry subscription show`)."
    )

    def __init__(self, administration: Administration) -> None:
        self._administration = administration
        self._pool = administration.pool

    async def ask(
        self,
        kind: Reread,
        service: str,
        tenant: str,
        actor: str,
        *,
        from_: datetime | None = None,
        from_sequence: int | None = None,
        to: datetime | None = None,
    ) -> SubscriptionJob:
        """The worker that holds the tenant begins at once."""
        if (from_ is None) == (from_sequence is None):
            raise TenantInvalid("from", f"expected a {kind} to begin at a time or at a sequence, and not at both")
        if kind == "rewind" and to is not None:
            raise TenantInvalid("to", "expected a rewind to have no end: the service goes on from there as ever")
        first, end = _text("from", from_), _text("to", to)
        if first and end and first >= end:
            raise TenantInvalid("to", f"expected the end to be after the beginning, {first}, got: {end}")
        request = {"from": first, "from_sequence": from_sequence, "to": end}
        async with self._administration.registry.change(tenant) as connection:
            await self._require_askable(connection, service, tenant)
            asked = {"kind": kind, "service": service, "tenant": tenant, "actor": actor, "request": Jsonb(request)}
            row = await _sql.fetch_one(connection, "ask_job", asked)
            assert row is not None
            about = {"name": service, "job": str(row["id"]), **request}
            await self._administration.audit.append(connection, actor, f"subscription.{kind}", tenant, after=about)
        await nudge_workers(self._administration)
        return SubscriptionJob(**row)

    async def newest(
        self, limit: int, *, tenant: str | None = None, service: str | None = None
    ) -> list[SubscriptionJob]:
        asked = {"limit": limit, "tenant": tenant, "service": service}
        async with self._pool.connection() as connection:
            return [SubscriptionJob(**row) for row in await _sql.fetch_all(connection, "list_jobs", asked)]

    async def get(self, id: str, tenant: str | None = None) -> SubscriptionJob:
        """The beginning of its id is enough. With a tenant, only a job that is for this one alone is there."""
        asked = ids_from(id)._asdict() | {"tenant": tenant}
        async with self._pool.connection() as connection:
            found = await _sql.fetch_all(connection, "find_jobs", asked)
        if not found:
            raise TenantNotFound(f"there is no job {id!r}; `tenantry subscription jobs` lists them")
        if len(found) > 1:
            raise TenantConflict(f"the ids of several jobs begin with {id}; give more of it")
        return SubscriptionJob(**found[0])

    async def cancel(self, id: str, actor: str) -> SubscriptionJob:
        """A redrive ends here, and what it was not at yet stays dead; a replay ends soon, and what it did is done."""
        job = await self.get(id)
        async with self._pool.connection() as connection, connection.transaction():
            # Letters before their job, in the order in which workers lock them.
            await _sql.execute(connection, "release_dead_letters", {"id": job.id})
            row = await _sql.fetch_one(connection, "cancel_job", {"id": job.id})
            if row:
                about = {"name": job.service, "job": str(job.id)}
                await self._administration.audit.append(
                    connection, actor, "subscription.cancel", job.tenant_id, after=about
                )
        if row is None:
            raise TenantConflict(f"job {job.id} has ended already: it is {(await self.get(str(job.id))).state}")
        await nudge_workers(self._administration)
        return SubscriptionJob(**row)

    async def _require_askable(self, connection: Connection, service: str, tenant: str) -> None:
        found = await self._administration.registry.get(tenant, connection)
        named = await _sql.fetch_one(connection, "list_subscriptions", {"service": service, "owner": tenant})
        if named is None:
            raise unknown_service(service)
        if found.channel(named["channel"]) is None:
            raise TenantNotFound(f"tenant {tenant} has no channel {named['channel']!r}, which {service} handles")
        under_way = await _sql.fetch_one(connection, "open_replay", {"service": service, "tenant": tenant})
        if under_way:
            raise TenantConflict(
                f"a {under_way['kind']} of {service} for tenant {tenant} is under way: wait until it is done, or "
                f"`tenantry subscription cancel {str(under_way['id'])[:8]}`"
            )


def unknown_service(service: str) -> TenantNotFound:
    return TenantNotFound(f"no worker has served {service!r} yet; `tenantry subscription list` shows what they serve")


def _text(field: str, moment: datetime | None) -> str | None:
    """In UTC, which it also is if it does not say."""
    if moment is None:
        return None
    try:
        aware = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
        return aware.astimezone(UTC).isoformat(timespec="microseconds")
    except OverflowError:
        raise TenantInvalid(field, f"expected {field} to be a time of this era, got: {moment.isoformat()}") from None
