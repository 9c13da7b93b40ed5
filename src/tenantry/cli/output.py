"""How commands print: aligned columns for people, one JSON document a line for programs."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

import msgspec
from rich.console import Console
from rich.text import Text

if TYPE_CHECKING:
    from rich.progress import Progress

console = Console(highlight=False)
margin = Console(highlight=False, stderr=True)
"""For what is not the result: a program that reads the output does not see it."""


def print_json(document: Any) -> None:
    print(msgspec.json.encode(document).decode(), flush=True)


def print_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """One line a row, however long: a path that was broken in two cannot be copied."""
    widths = [max(len(row[place]) for row in [columns, *rows]) for place in range(len(columns))]
    for number, row in enumerate([columns, *rows]):
        line = "  ".join(value.ljust(width) for value, width in zip(row, widths, strict=True)).rstrip()
        console.print(Text(line, style="bold" if number == 0 else ""), soft_wrap=True)


def say(text: str) -> None:
    """A line of the result, as it is."""
    console.print(Text(text), soft_wrap=True)


def note(text: str) -> None:
    """A line beside the result."""
    margin.print(Text(text), soft_wrap=True)


def progress() -> Progress:
    """Bars that go when they are done; without a terminal there are none."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=margin,
        transient=True,
        disable=not margin.is_terminal,
    )


def format_time(moment: datetime | None) -> str:
    """A moment as the person at this machine reads a clock."""
    return moment.astimezone().strftime("%Y-%m-%d %H:%M:%S") if moment else "-"
