"""Why a lane is parked: told to those who wrote the code that failed."""

from __future__ import annotations

import traceback
from pathlib import Path
from types import TracebackType
from typing import Final, NamedTuple

LONGEST_REASON: Final = 500
LONGEST_TRACEBACK: Final = 20_000

_OURS: Final = str(Path(__file__).parents[1])


class Parking(NamedTuple):
    sequence: int
    """The event that could not be applied. Those before it are."""
    reason: str
    traceback: str

    @classmethod
    def at(cls, sequence: int, problem: Exception) -> Parking:
        lines = traceback.format_exception(type(problem), problem, _user_frames(problem.__traceback__))
        return cls(sequence, _reason(problem), _storable("".join(lines)[-LONGEST_TRACEBACK:]))


def _reason(problem: Exception) -> str:
    try:
        text = str(problem)
    except Exception:
        text = "(it cannot be shown)"
    name = type(problem).__name__
    line = f"{name}: {text}" if text else name
    return _storable(line.strip().splitlines()[0])[:LONGEST_REASON]


def _user_frames(found: TracebackType | None) -> TracebackType | None:
    """The frames from where Tenantry called the application's code."""
    while found is not None and found.tb_frame.f_code.co_filename.startswith(_OURS):
        found = found.tb_next
    return found


def _storable(text: str) -> str:
    """PostgreSQL takes neither a zero character nor half of one."""
    return text.replace("\0", "\\x00").encode("utf-8", "backslashreplace").decode()
