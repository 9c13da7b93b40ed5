"""Durations and sizes as people write them: `7d`, `24h`, `90s`, `512MiB`, `10GB`."""

from __future__ import annotations

import re
from typing import Final

from tenantry.errors import TenantInvalid

UNLIMITED: Final = -1
LONGEST: Final = 100 * 366 * 86_400
LARGEST: Final = 1 << 50

_SECONDS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
_BYTES: Final = {
    "b": 1,
    **{f"{letter}b": 1000**power for power, letter in enumerate("kmgt", 1)},
    **{f"{letter}ib": 1024**power for power, letter in enumerate("kmgt", 1)},
}
_QUANTITY = re.compile(r"(\d{1,18})\s*([a-z]*)", re.IGNORECASE)


def parse_duration(field: str, value: object) -> int:
    """Seconds, from a whole number of them or a text like `7d`."""
    seconds = _parse(value, _SECONDS)
    if seconds is None or not 0 < seconds <= LONGEST:
        raise TenantInvalid(
            field, f"expected {field} to be a positive duration like 90s, 24h or 7d, up to 100 years, got: {value!r}"
        )
    return seconds


def parse_size(field: str, value: object) -> int:
    """Bytes, from a whole number of them or a text like `512MiB`; -1 is no limit."""
    size = UNLIMITED if value in (UNLIMITED, "-1") else _parse(value, _BYTES)
    if size is None or size == 0 or size > LARGEST:
        raise TenantInvalid(
            field, f"expected {field} to be a size like 512MiB or 10GB, up to 1PiB, or -1, got: {value!r}"
        )
    return size


def format_duration(seconds: int) -> str:
    unit = next(unit for unit in "wdhms" if seconds % _SECONDS[unit] == 0 and (unit != "w" or seconds > 604_800 * 4))
    return f"{seconds // _SECONDS[unit]}{unit}"


def format_size(size: int) -> str:
    if size == UNLIMITED:
        return "unlimited"
    for unit, name in ((1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if size >= unit and size % unit == 0:
            return f"{size // unit}{name}"
    return f"{size}B"


def _parse(value: object, units: dict[str, int]) -> int | None:
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return value if value >= 0 else None
    match = _QUANTITY.fullmatch(value.strip()) if isinstance(value, str) else None
    if match is None or (match[2] and match[2].lower() not in units):
        return None
    return int(match[1]) * units[match[2].lower()] if match[2] else int(match[1])
