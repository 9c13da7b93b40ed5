"""Ids by their beginning, as people type them."""

from __future__ import annotations

import re
from typing import Final, NamedTuple
from uuid import UUID

_HEX: Final = re.compile("[0-9a-f]{1,32}")


class IdRange(NamedTuple):
    """All ids with the same beginning, as an index finds them."""

    first: UUID
    last: UUID


NO_IDS: Final = IdRange(UUID(int=1), UUID(int=0))


def ids_from(beginning: str) -> IdRange:
    digits = beginning.strip().lower().replace("-", "")
    if not _HEX.fullmatch(digits):
        return NO_IDS
    return IdRange(UUID(digits.ljust(32, "0")), UUID(digits.ljust(32, "f")))
