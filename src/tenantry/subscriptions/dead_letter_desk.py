"""Dead letters, looked at and acted on from outside: found, handled again, or done away with."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Final, Literal

import msgspec
from psycopg.types.json import Jsonb

from tenantry.errors import TenantConflict, TenantNotFound
from tenantry.postgres.queries import Connection, SqlFolder
from tenantry.subscriptions.found_letter import PIPELINES, DeadLetterFilter, FoundLetter, Place, WholeLetter
from tenantry.subscriptions.id_prefix import ids_from
from tenantry.subscriptions.job_desk import SubscriptionJob
from tenantry.subscriptions.nudging import nudge_workers
from tenantry.tenants.administration import Administration

Act = Literal["redrive", "discard"]

MOST_GROUPS: Final = 20

_sql = SqlFolder("tenantry.subscriptions")


class Group(msgspec.Struct, frozen=True, kw_only=True):
    service: str
    tenant_id: str
    reason: str
    count: int


class Preview(msgspec.Struct, frozen=True, kw_only=True):
    """What an act would be about."""

    count: int
    added: int
    """Of `count`, those that the filter does not name: they have the key of one that it names, and come before."""
    under_way: int
    """Those that the filter names and that are not counted: somebody is at them, or at what has their key and comes
    before."""
    left_out: int
    """Those of pipelines, which cannot be redriven; they are not counted."""
    groups: list[Group]
    """The largest."""
    as_of: datetime
    """As `until` of a filter, it leaves out all that die after the preview."""


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    discarded: int
    """How many are gone by now."""
    jobs: list[SubscriptionJob]
    """One for each service, for all others."""


class DeadLetterDesk:
    def __init__(self, administration: Administration) -> None:
        self._administration = administration
        self._pool = administration.pool

    async def page(self, wanted: DeadLetterFilter, limit: int, after: Place | None = None) -> list[FoundLetter]:
        """The newest first."""
        place = {"before": after.died_at if after else None, "before_id": after.id if after else None}
        asked = wanted.parameters() | place | {"limit": limit}
        async with self._pool.connection() as connection:
            return [FoundLetter(**row) for row in await _sql.fetch_all(connection, "page_dead_letters", asked)]

    async def get(self, id: str, owner: str | None = None) -> WholeLetter:
        """The beginning of its id is enough. With an owner, there are no others than what belongs to it."""
        asked = ids_from(id)._asdict() | {"owner": owner}
        async with self._pool.connection() as connection:
            found = await _sql.fetch_all(connection, "find_dead_letters", asked)
        if not found:
            raise TenantNotFound(f"there is no dead letter {id!r}; `tenantry dlq list` lists them")
        if len(found) > 1:
            raise TenantConflict(f"the ids of several dead letters begin with {id}; give more of it")
        return WholeLetter(**found[0])

    async def preview(self, act: Act, wanted: DeadLetterFilter) -> Preview:
        asked = _asked(act, wanted)
        async with self._pool.connection() as connection:
            counted = await _sql.fetch_one(connection, "count_chosen_dead_letters", asked)
            groups = await _sql.fetch_all(connection, "group_chosen_dead_letters", asked | {"groups": MOST_GROUPS})
        assert counted is not None
        return Preview(groups=[Group(**row) for row in groups], **counted)

    async def redrive(self, wanted: DeadLetterFilter, actor: str) -> Outcome:
        """The workers that hold the tenants handle them again, in order; what fails again stays."""
        return await self._act("redrive", wanted, actor)

    async def discard(self, wanted: DeadLetterFilter, actor: str) -> Outcome:
        """What holds others back is dropped by the worker that holds the tenant, everything else here."""
        return await self._act("discard", wanted, actor)

    async def _act(self, act: Act, wanted: DeadLetterFilter, actor: str) -> Outcome:
        asked = _asked(act, wanted)
        async with self._pool.connection() as connection, connection.transaction():
            discarded = await _sql.execute(connection, "discard_dead_letters", asked) if act == "discard" else 0
            jobs = await self._open_jobs(connection, asked, wanted, actor)
            outcome = Outcome(discarded=discarded, jobs=jobs)
            if discarded or jobs:
                await self._record(connection, act, wanted, actor, outcome)
        if jobs:
            await nudge_workers(self._administration)
        return outcome

    async def _open_jobs(
        self, connection: Connection, asked: dict[str, Any], wanted: DeadLetterFilter, actor: str
    ) -> list[SubscriptionJob]:
        new = asked | {"request": Jsonb(wanted.describe()), "actor": actor}
        opened = [row["id"] for row in await _sql.fetch_all(connection, "open_dead_letter_jobs", new)]
        rows = await _sql.fetch_all(connection, "hand_over_dead_letters", asked | {"jobs": opened})
        await _sql.execute(connection, "drop_empty_jobs", {"jobs": opened})
        return sorted((SubscriptionJob(**row) for row in rows), key=lambda job: job.service)

    async def _record(
        self, connection: Connection, act: Act, wanted: DeadLetterFilter, actor: str, outcome: Outcome
    ) -> None:
        about = {
            "name": wanted.service or "all services",
            "filter": wanted.describe(),
            "count": outcome.discarded + sum(job.total or 0 for job in outcome.jobs),
            "jobs": [str(job.id) for job in outcome.jobs],
        }
        whose = wanted.owner or wanted.tenant
        await self._administration.audit.append(connection, actor, f"dead_letter.{act}", whose, after=about)


def _asked(act: Act, wanted: DeadLetterFilter) -> dict[str, Any]:
    if act == "redrive" and wanted.service == PIPELINES:
        raise TenantConflict(
            "dead letters of pipelines cannot be redriven, for the pipelines have gone on without them: once the cause "
            "is put right, `tenantry replay --pipeline NAME` reads their events again"
        )
    return wanted.parameters() | {"kind": act}
