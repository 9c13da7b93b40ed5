"""The flags that name dead letters."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated
from uuid import UUID

from cyclopts import Group, Parameter

from tenantry.cli.moments import read_moment
from tenantry.subscriptions.dead_letters import State
from tenantry.subscriptions.found_letter import DeadLetterFilter

FILTERS = Group("Filters", sort_key=5, help="Only those that all of them fit.")


def _about(help: str) -> Parameter:
    return Parameter(help=help)


@Parameter(name="*", group=FILTERS)
@dataclass(frozen=True, kw_only=True)
class Filters:
    tenant: Annotated[str | None, _about("Of this tenant.")] = None
    service: Annotated[str | None, _about("Of this service, push/ENDPOINT, or pipelines.")] = None
    type: Annotated[str | None, _about("Events of this type.")] = None
    state: Annotated[State | None, _about("In this state.")] = None
    key: Annotated[str | None, _about("Events with this key.")] = None
    event: Annotated[str | None, _about("The event with this id.")] = None
    reason: Annotated[str | None, _about("With this in the reason, in whatever case.")] = None
    since: Annotated[str | None, _about("That died then or later: a time, or how long ago, like 24h.")] = None
    until: Annotated[str | None, _about("That died before: a time, or how long ago.")] = None

    def read(self, ids: Iterable[UUID] = ()) -> DeadLetterFilter:
        return DeadLetterFilter(
            tenant=self.tenant,
            service=self.service,
            type=self.type,
            state=self.state,
            key=self.key,
            event=self.event,
            reason=self.reason,
            since=None if self.since is None else read_moment("since", self.since),
            until=None if self.until is None else read_moment("until", self.until),
            ids=tuple(ids) or None,
        )


ALL = Filters()
