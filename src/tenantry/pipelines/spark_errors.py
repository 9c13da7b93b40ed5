"""What Spark says when something fails, with the cause in Python first: most of it is about how Spark got there."""

from __future__ import annotations

import re
import traceback
from typing import Final, NamedTuple

LONGEST_REASON: Final = 500
_TRACEBACK: Final = re.compile(r"Traceback \(most recent call last\):\n(?:[ \t].*\n|\n)*(?P<cause>\S.*)")
_CONDITION: Final = re.compile(r"\[(?P<condition>[A-Z][A-Z0-9_.]+)\] (?P<text>[^\n]+)")
_THROWN: Final = re.compile(r"^: (?P<thrown>[\w.$]+(?:Exception|Error)\b.*)$", re.MULTILINE)


class Cause(NamedTuple):
    reason: str
    """One line: `ValueError: …`."""
    traceback: str


def find_cause(problem: BaseException) -> Cause:
    """The innermost traceback of a Python worker, else the first condition that Spark names, else what there is."""
    text = str(problem)
    found = list(_TRACEBACK.finditer(text))
    if found:
        last = found[-1]
        return Cause(_line(last["cause"]), last.group().replace("\0", "\\x00"))
    if named := _CONDITION.search(text):
        return Cause(_line(f"{named['condition']}: {named['text']}"), text.replace("\0", "\\x00"))
    if thrown := _THROWN.search(text):
        return Cause(_line(thrown["thrown"]), text.replace("\0", "\\x00"))
    shown = f"{type(problem).__name__}: {text}" if text else type(problem).__name__
    return Cause(_line(shown), "".join(traceback.format_exception(problem)).replace("\0", "\\x00"))


def _line(text: str) -> str:
    return text.strip().splitlines()[0].replace("\0", "\\x00")[:LONGEST_REASON]
