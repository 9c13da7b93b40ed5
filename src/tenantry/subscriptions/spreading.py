"""Who handles whose events: each tenant goes to one of the workers that may have it, by rendezvous hashing.

Each worker has a score for each tenant, and the highest has it. Whoever comes takes a tenant only where its own score
is the highest, and whoever goes leaves behind only what was its own: nothing else moves.
https://en.wikipedia.org/wiki/Rendezvous_hashing
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from hashlib import blake2b
from typing import Any, Final, NamedTuple

import msgspec

PUSH: Final = "push"
PUSH_PREFIX: Final = f"{PUSH}-"
"""With which the service of each endpoint begins."""
ACCOUNTS: Final = "accounts"
"""The service that takes in what others provisioned."""


class Member(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A worker, as it introduces itself."""

    id: str
    app: str = ""
    services: frozenset[str] = frozenset()
    tenants: frozenset[str] = frozenset()
    """Those that it is there for; none: all."""
    plans: frozenset[str] = frozenset()
    """The plans that it is there for; none: all."""
    host: str = ""
    pid: int = 0
    is_leaving: bool = False
    """It hands over what it has, and takes nothing more."""
    load: dict[str, Any] = {}
    """What it has to do, and how it copes."""


class Partition(NamedTuple):
    """What one worker at a time holds: part of a tenant's events, for a service."""

    service: str
    tenant: str
    part: int

    def __str__(self) -> str:
        return f"{self.service}/{self.tenant}/{self.part}"

    @property
    def capability(self) -> str:
        """What a worker has to be able to do for it."""
        return PUSH if self.service.startswith(PUSH_PREFIX) else self.service


class Spread:
    """The workers that there are, asked again and again about the same tenants."""

    def __init__(self, members: Iterable[Member]) -> None:
        self._members = [member for member in members if not member.is_leaving]
        self._owners: dict[tuple[Partition, str], str | None] = {}

    def owner(self, partition: Partition, plan: str) -> str | None:
        """The worker that is to hold it; None if nobody may.

        By its tenant and part, whatever the service: what a worker needs for a tenant, it then needs only once.
        """
        question = (partition, plan)
        if question not in self._owners:
            able = [member.id for member in self._able(partition, plan)]
            place = f"{partition.tenant}/{partition.part}"
            self._owners[question] = max(able, key=lambda member: _score(member, place), default=None)
        return self._owners[question]

    def _able(self, partition: Partition, plan: str) -> Collection[Member]:
        """Those that are there for this tenant; else for its plan; else for all."""
        serving = [member for member in self._members if partition.capability in member.services]
        return (
            [member for member in serving if partition.tenant in member.tenants]
            or [member for member in serving if plan in member.plans]
            or [member for member in serving if not member.tenants and not member.plans]
        )


def _score(member: str, place: str) -> bytes:
    return blake2b(f"{member} {place}".encode(), digest_size=8).digest()
