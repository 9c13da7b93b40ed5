"""The push endpoints of tenants, in PostgreSQL: made, changed and deleted, each act on record with its actor."""

from __future__ import annotations

from typing import Any, Final

import msgspec
from psycopg.rows import DictRow

from tenantry.config import Settings
from tenantry.errors import TenantConflict, TenantInvalid, TenantNotFound
from tenantry.postgres.pool import Pool
from tenantry.postgres.queries import Connection, SqlFolder
from tenantry.subscriptions.push_address import AddressGuard
from tenantry.subscriptions.push_endpoint import Order, PushEndpoint, PushSpec, State, read_spec, spec_of
from tenantry.tenants.administration import Administration
from tenantry.tenants.audit import AuditLog
from tenantry.tenants.registry import Registry
from tenantry.tenants.spec import require_text, require_valid

MOST_ENDPOINTS: Final = 50
OVERLAP_SECONDS: Final = 86_400
LONGEST_OVERLAP: Final = 30 * 86_400
ACTOR: Final = "push"
"""Who the audit log says disabled an endpoint, if its receiver did."""

_sql = SqlFolder("tenantry.subscriptions")


class PushEndpoints:
    def __init__(self, pool: Pool, registry: Registry, audit: AuditLog, guard: AddressGuard) -> None:
        self._pool = pool
        self._registry = registry
        self._audit = audit
        self._guard = guard

    @classmethod
    def from_settings(cls, settings: Settings, administration: Administration) -> PushEndpoints:
        guard = AddressGuard(settings.push_allowed_networks)
        return cls(administration.pool, administration.registry, administration.audit, guard)

    async def create(
        self, tenant: str, name: str, spec: PushSpec, actor: str, *, channel: str = "events"
    ) -> PushEndpoint:
        """A new endpoint; events that are published from now on are for it, too."""
        require_valid("channel", name, "name", "name")
        wanted = read_spec(spec)
        self._guard.require_url(wanted.url or "")
        async with self._registry.change(tenant) as connection:
            found = await self._registry.get(tenant, connection)
            if found.channel(channel) is None:
                raise TenantInvalid("channel", f"tenant {tenant} has no channel {channel[:80]!r}")
            held = await self._held(connection, tenant)
            if any(each.name == name for each in held):
                raise TenantConflict(
                    f"tenant {tenant} has an endpoint {name} already; change it, or choose another name"
                )
            if len(held) >= MOST_ENDPOINTS:
                raise TenantConflict(
                    f"tenant {tenant} has {len(held)} endpoints and can have no more; delete one first"
                )
            row = _row(wanted) | {"tenant": tenant, "name": name, "channel": channel}
            endpoint = await self._one(connection, "push_insert", row)
            await self._record(connection, actor, "endpoint.create", None, endpoint)
        return endpoint

    async def of(self, tenant: str) -> list[PushEndpoint]:
        """Those of a tenant, by name."""
        await self._registry.get(tenant)
        async with self._pool.connection() as connection:
            return await self._held(connection, tenant)

    async def get(self, tenant: str, name: str) -> PushEndpoint:
        async with self._pool.connection() as connection:
            return await self._find(connection, tenant, name)

    async def change(self, tenant: str, name: str, spec: PushSpec, actor: str) -> PushEndpoint:
        """Change what the spec names; workers follow within a second."""
        async with self._registry.change(tenant) as connection:
            before = await self._find(connection, tenant, name)
            wanted = read_spec(spec, spec_of(before))
            if wanted == spec_of(before):
                return before
            if wanted.url != before.url:
                self._guard.require_url(wanted.url or "")
            after = await self._one(connection, "push_update", _row(wanted) | {"id": before.id})
            await self._record(connection, actor, "endpoint.change", before, after)
        return after

    async def rotate(self, tenant: str, name: str, actor: str, *, overlap: int = OVERLAP_SECONDS) -> PushEndpoint:
        """A new secret signs from now on; the one before it signs beside it, for `overlap` seconds."""
        if not 0 <= overlap <= LONGEST_OVERLAP:
            raise TenantInvalid(
                "overlap_seconds", f"expected overlap_seconds to be 0 to {LONGEST_OVERLAP} (30 days), got: {overlap}"
            )
        async with self._registry.change(tenant) as connection:
            before = await self._find(connection, tenant, name)
            after = await self._one(connection, "push_rotate", {"id": before.id, "overlap": overlap})
            await self._record(connection, actor, "endpoint.rotate", before, after)
        return after

    async def enable(self, tenant: str, name: str, actor: str) -> PushEndpoint:
        return await self._set_state(tenant, name, State.ACTIVE, "", actor)

    async def disable(self, tenant: str, name: str, actor: str, reason: str = "") -> PushEndpoint:
        """Deliver nothing to it until it is enabled again."""
        if reason:
            require_text("reason", reason)
        return await self._set_state(tenant, name, State.DISABLED, reason, actor)

    async def retire(self, endpoint: PushEndpoint, reason: str) -> bool:
        """Disable an endpoint whose receiver wants no more; False if it leads elsewhere or is disabled by now."""
        async with self._registry.change(endpoint.tenant_id) as connection:
            row = {"id": endpoint.id, "url": endpoint.url, "reason": reason}
            found = await _sql.fetch_one(connection, "push_retire", row)
            if found is None:
                return False
            await self._record(connection, ACTOR, "endpoint.disable", endpoint, _endpoint(found))
        return True

    async def delete(self, tenant: str, name: str, actor: str) -> None:
        async with self._registry.change(tenant) as connection:
            before = await self._find(connection, tenant, name)
            await _sql.execute(connection, "push_delete", {"id": before.id})
            await self._audit.append(connection, actor, "endpoint.delete", tenant, before=before.describe())

    async def reveal(self, tenant: str, name: str, actor: str) -> PushEndpoint:
        """The endpoint, for somebody who is about to be shown its secret; that is on record."""
        async with self._registry.change(tenant) as connection:
            found = await self._find(connection, tenant, name)
            after = {"name": name, "secret_version": found.secret_version}
            await self._audit.append(connection, actor, "endpoint.reveal", tenant, after=after)
        return found

    async def version(self) -> tuple[int, int]:
        """Another pair whenever `active` would answer something else; cheap enough to be asked twice a second."""
        async with self._pool.connection() as connection:
            row = await _sql.fetch_one(connection, "push_version")
        assert row is not None
        return int(row["endpoints"]), int(row["revisions"])

    async def active(self) -> list[PushEndpoint]:
        """All that events are to be delivered to now: enabled ones of tenants that are not suspended."""
        async with self._pool.connection() as connection:
            return [_endpoint(row) for row in await _sql.fetch_all(connection, "push_active")]

    async def _set_state(self, tenant: str, name: str, state: State, reason: str, actor: str) -> PushEndpoint:
        async with self._registry.change(tenant) as connection:
            before = await self._find(connection, tenant, name)
            if (before.state, before.state_reason) == (state, reason):
                return before
            after = await self._one(connection, "push_set_state", {"id": before.id, "state": state, "reason": reason})
            act = "endpoint.enable" if state == State.ACTIVE else "endpoint.disable"
            await self._record(connection, actor, act, before, after)
        return after

    async def _held(self, connection: Connection, tenant: str) -> list[PushEndpoint]:
        return [_endpoint(row) for row in await _sql.fetch_all(connection, "push_of_tenant", {"tenant": tenant})]

    async def _find(self, connection: Connection, tenant: str, name: str) -> PushEndpoint:
        row = await _sql.fetch_one(connection, "push_find", {"tenant": tenant, "name": name})
        if row is None:
            raise TenantNotFound(f"tenant {tenant} has no endpoint {name[:80]!r}")
        return _endpoint(row)

    async def _one(self, connection: Connection, query: str, parameters: dict[str, Any]) -> PushEndpoint:
        row = await _sql.fetch_one(connection, query, parameters)
        assert row is not None
        return _endpoint(row)

    async def _record(
        self, connection: Connection, actor: str, act: str, before: PushEndpoint | None, after: PushEndpoint
    ) -> None:
        await self._audit.append(
            connection,
            actor,
            act,
            after.tenant_id,
            before=before.describe() if before else None,
            after=after.describe(),
        )


def _row(wanted: PushSpec) -> dict[str, Any]:
    return msgspec.structs.asdict(wanted) | {"types": list(wanted.types or ())}


def _endpoint(row: DictRow) -> PushEndpoint:
    own = {name: row[name] for name in PushEndpoint.__struct_fields__}
    read = {"types": tuple(row["types"]), "order": Order(row["order"]), "state": State(row["state"])}
    return PushEndpoint(**own | read)
