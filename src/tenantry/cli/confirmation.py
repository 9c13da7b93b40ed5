"""Asks before something is erased for good."""

from __future__ import annotations

import sys

from tenantry.cli.output import margin
from tenantry.errors import TenantryError


def confirm(what: str, word: str, *, yes: bool) -> None:
    """Go on only if the person types the word. Without a terminal nobody could: then `--yes` has to say it."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise TenantryError(f"{what} cannot be undone; there is no terminal to ask at, so say --yes to go on")
    question = f"{what[:1].upper()}{what[1:]} cannot be undone. Type {word} to go on: "
    margin.print(question, end="", markup=False, soft_wrap=True)
    try:
        typed = input()
    except EOFError:
        typed = ""
    if typed.strip() != word:
        raise TenantryError("nothing was changed")
