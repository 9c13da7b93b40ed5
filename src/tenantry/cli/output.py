"""How commands print: aligned columns for people, one JSON document a line for programs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from rich.console import Console
from rich.text import Text

console = Console(highlight=False)


def print_json(document: Any) -> None:
    print(msgspec.json.encode(document).decode(), flush=True)


def print_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """One line a row, however long: a path that was broken in two cannot be copied."""
    widths = [max(len(row[place]) for row in [columns, *rows]) for place in range(len(columns))]
    for number, row in enumerate([columns, *rows]):
        line = "  ".join(value.ljust(width) for value, width in zip(row, widths, strict=True)).rstrip()
        console.print(Text(line, style="bold" if number == 0 else ""), soft_wrap=True)
