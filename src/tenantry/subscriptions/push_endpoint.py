"""A push endpoint: the URL of a tenant that events are delivered to, and how."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from enum import StrEnum
from typing import Any, Final
from uuid import UUID

import msgspec

from tenantry.errors import SubjectInvalid, TenantInvalid
from tenantry.event import EVERY_TYPE, require_type_pattern

MOST_TYPES: Final = 100
MOST_IN_FLIGHT: Final = 1000
LONGEST_TIMEOUT: Final = 60
MOST_RETRIES: Final = 100


class Order(StrEnum):
    """`fifo`: one after another, and none before the one ahead of it is delivered or given up."""

    PARALLEL = "parallel"
    FIFO = "fifo"


class State(StrEnum):
    ACTIVE = "active"
    DISABLED = "disabled"


class PushEndpoint(msgspec.Struct, frozen=True, kw_only=True):
    id: UUID
    tenant_id: str
    name: str
    url: str
    channel: str
    types: tuple[str, ...]
    order: Order
    max_in_flight: int
    """Deliveries under way at once, at most."""
    timeout_seconds: int
    """For one attempt, from the first byte of the connection to the last of the answer."""
    retries: int
    """Attempts after the first one."""
    secret_version: int
    previous_secret_until: datetime | None
    state: State
    state_reason: str
    revision: int
    """Another one with every change."""
    created_at: datetime
    updated_at: datetime

    def signing_versions(self, now: datetime) -> tuple[int, ...]:
        """The secrets that sign, the current one first; the one before it while it is still good."""
        if self.previous_secret_until is not None and now < self.previous_secret_until:
            return (self.secret_version, self.secret_version - 1)
        return (self.secret_version,)

    def describe(self) -> dict[str, Any]:
        """What a person or a program is shown. It holds no secret."""
        document: dict[str, Any] = msgspec.to_builtins(self)
        del document["revision"]
        return document


class PushSpec(msgspec.Struct, frozen=True, kw_only=True):
    """What is wanted of an endpoint. What is left out stays as it is, or gets its default in a new one."""

    url: str | None = None
    types: tuple[str, ...] | None = None
    order: str | None = None
    max_in_flight: int | None = None
    timeout_seconds: int | None = None
    retries: int | None = None


DEFAULT: Final = PushSpec(types=(EVERY_TYPE,), order=Order.PARALLEL, max_in_flight=10, timeout_seconds=15, retries=12)


def read_spec(spec: PushSpec, before: PushSpec = DEFAULT) -> PushSpec:
    """All that is wanted, checked but for the URL, which the guard of addresses checks."""
    given = {name: value for name, value in msgspec.structs.asdict(spec).items() if value is not None}
    wanted = msgspec.structs.replace(before, **given)
    if wanted.order not in list(Order):
        raise TenantInvalid("order", f"expected order to be one of {', '.join(Order)}, got: {str(wanted.order)[:80]!r}")
    _require_types(wanted.types or ())
    _require_between("max_in_flight", wanted.max_in_flight, 1, MOST_IN_FLIGHT)
    _require_between("timeout_seconds", wanted.timeout_seconds, 1, LONGEST_TIMEOUT)
    _require_between("retries", wanted.retries, 0, MOST_RETRIES)
    return wanted


def spec_of(endpoint: PushEndpoint) -> PushSpec:
    return PushSpec(**{name: getattr(endpoint, name) for name in PushSpec.__struct_fields__})


def _require_types(types: Iterable[str]) -> None:
    wanted = list(types)
    if not 0 < len(wanted) <= MOST_TYPES:
        raise TenantInvalid(
            "types", f"expected 1 to {MOST_TYPES} types, got: {len(wanted)}; {EVERY_TYPE} stands for all of them"
        )
    for each in wanted:
        try:
            require_type_pattern(each)
        except SubjectInvalid as problem:
            raise TenantInvalid("types", str(problem)) from None


def _require_between(field: str, value: int | None, least: int, most: int) -> None:
    if value is None or not least <= value <= most:
        raise TenantInvalid(field, f"expected {field} to be {least} to {most}, got: {value}")
