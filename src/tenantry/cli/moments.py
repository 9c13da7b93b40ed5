"""Moments as people type them: a date, a time, or how long ago."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from tenantry.errors import TenantInvalid
from tenantry.tenants.quantities import parse_duration


def read_time(field: str, text: str) -> datetime:
    """UTC unless it says."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise TenantInvalid(
            field, f"expected --{field} to be a date or a time, like 2026-11-01T12:00:00Z, got: {text!r}"
        ) from None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def read_moment(field: str, text: str) -> datetime:
    """A time, or so long ago."""
    for read in (read_time, _read_ago):
        try:
            return read(field, text)
        except TenantInvalid:
            continue
    raise TenantInvalid(
        field, f"expected --{field} to be a time like 2026-11-01T12:00:00Z, or how long ago, like 24h, got: {text!r}"
    )


def _read_ago(field: str, text: str) -> datetime:
    return datetime.now(UTC) - timedelta(seconds=parse_duration(field, text))
