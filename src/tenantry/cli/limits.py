"""Limits as flags say them (`storage=10GiB`, `retention.events=30d`) and as people read them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tenantry.errors import TenantInvalid
from tenantry.tenants.plans import ANY_CHANNEL, Limits
from tenantry.tenants.quantities import UNLIMITED, format_duration, format_size

RETENTION = "retention"
_SIZES = ("storage", "payload")
_DURATIONS = ("duplicate_window", "table_retention")


def parse_limits(given: Iterable[str]) -> dict[str, Any]:
    """What `--limit` flags ask for. Values stay as typed: they are checked wherever they come from."""
    limits: dict[str, Any] = {}
    for text in given:
        name, separator, value = (part.strip() for part in text.partition("="))
        if not (name and separator and value):
            raise TenantInvalid(
                "limit", f"expected --limit NAME=VALUE, like storage=10GiB or retention.events=30d, got: {text!r}"
            )
        _require_limit("--limit", name)
        if channel := _channel(name):
            limits.setdefault(RETENTION, {})[channel] = value
        else:
            limits[name] = str(UNLIMITED) if value == "unlimited" else value
    return limits


def without_limits(overrides: dict[str, Any], names: Iterable[str]) -> dict[str, Any]:
    """Overrides in which those named are taken back: as null, which says so to the registry."""
    left = dict(overrides)
    for name in names:
        _require_limit("--unset-limit", name)
        if "." in name:
            left[RETENTION] = {**(left.get(RETENTION) or {}), _channel(name): None}
        else:
            left[name] = None
    return left


def format_limits(limits: Limits) -> dict[str, str]:
    """Each limit in the unit in which people think of it."""
    return {name: _format(name, getattr(limits, name)) for name in Limits.__struct_fields__}


def _format(name: str, value: Any) -> str:
    if name == RETENTION:
        named = [
            f"{channel} {format_duration(seconds)}" for channel, seconds in value.items() if channel != ANY_CHANNEL
        ]
        return ", ".join([format_duration(value[ANY_CHANNEL]), *sorted(named)])
    if name in _SIZES:
        return format_size(value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    if value == UNLIMITED:
        return "unlimited"
    if name in _DURATIONS:
        return format_duration(value)
    if isinstance(value, int):
        return f"{value:,}"
    return str(value)


def _channel(limit: str) -> str:
    """The channel that a retention is for; empty for any other limit."""
    name, _, channel = limit.partition(".")
    return (channel or ANY_CHANNEL) if name == RETENTION else ""


def _require_limit(flag: str, name: str) -> None:
    known = Limits.__struct_fields__
    if name not in known and not name.startswith(f"{RETENTION}."):
        raise TenantInvalid(
            "limit", f"expected {flag} to name a limit, one of {', '.join(known)} or retention.CHANNEL, got: {name!r}"
        )
