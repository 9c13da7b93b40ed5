"""What is asked for a tenant, as people and programs write it, and how it is read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from tenantry.errors import TenantInvalid
from tenantry.event import is_name
from tenantry.tenants.credentials import Kind
from tenantry.tenants.quantities import parse_duration
from tenantry.tenants.tenant import Channel, Placement

LONGEST_NAME: Final = 200


class TenantSpec(msgspec.Struct, frozen=True, kw_only=True):
    """What is wanted of a tenant. What is left out stays as it is, or gets its default in a new tenant."""

    id: str
    name: str | None = None
    plan: str | None = None
    tier: str | None = None
    overrides: Mapping[str, Any] | None = None
    """Limits that are to differ from the plan's; a null takes an override back."""
    placement: Mapping[str, Any] | None = None
    channels: Mapping[str, Any] | None = None
    """Channels to have, with a retention like `7d` or, for the plan's, null."""
    without_channels: tuple[str, ...] = ()
    """Channels to erase, with all that they hold."""


def require_valid(kind: str, value: str, field: str, what: str = "") -> None:
    """Raise unless `value` is a name for a tenant or a channel; `what` is called so in the error."""
    if not is_name(kind, value):
        longest = 48 if kind == "tenant" else 32
        raise TenantInvalid(
            field,
            f"expected {what or kind} to be 1 to {longest} lower-case letters, digits and dashes, and no dash at "
            f"either end, got: {value[:80]!r}",
        )


def require_text(field: str, value: str) -> str:
    if not 0 < len(value) <= LONGEST_NAME or not value.isprintable():
        raise TenantInvalid(
            field, f"expected {field} to be 1 to {LONGEST_NAME} printable characters, got: {value[:80]!r}"
        )
    return value


def read_kind(kind: str) -> Kind:
    if kind not in list(Kind):
        raise TenantInvalid("kind", f"expected kind to be one of {', '.join(Kind)}, got: {kind!r}")
    return Kind(kind)


def read_channels(given: Mapping[str, Any]) -> list[Channel]:
    for name in given:
        require_valid("channel", name, "channels")
    return [
        Channel(name=name, retention=None if retention is None else parse_duration(f"channels.{name}", retention))
        for name, retention in given.items()
    ]


def read_placement(given: Mapping[str, Any]) -> Placement:
    try:
        return msgspec.convert(dict(given), Placement)
    except msgspec.ValidationError as problem:
        raise TenantInvalid("placement", f"expected placement to have cluster, tags or lake: {problem}") from None


def merge_overrides(before: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Overrides as they will be: what is given counts, a null takes one back, and retention goes by channel."""
    merged = without_nulls({**before, **given})
    retention = given.get("retention")
    if isinstance(retention, Mapping):
        merged["retention"] = without_nulls({**before.get("retention", {}), **retention})
        if not merged["retention"]:
            del merged["retention"]
    return merged


def without_nulls(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}
