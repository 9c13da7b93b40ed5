"""`tenantry dlq list` and `show`."""

from __future__ import annotations

from typing import Annotated

import msgspec
from cyclopts import Parameter, validators

from tenantry.cli.dead_letter_filters import ALL, Filters
from tenantry.cli.options import DEFAULT, Options
from tenantry.cli.output import format_time, note, print_json, print_table, say
from tenantry.cli.session import administer
from tenantry.subscriptions.dead_letter_desk import DeadLetterDesk
from tenantry.subscriptions.found_letter import FoundLetter, WholeLetter

LONGEST_REASON = 80


def list_letters(
    *,
    filters: Filters = ALL,
    limit: Annotated[int, Parameter(validator=validators.Number(gte=1, lte=100_000))] = 50,
    json: bool = False,
    options: Options = DEFAULT,
) -> None:
    """List events that could not be handled, the newest first.

    Parameters
    ----------
    limit
        So many at most.
    json
        Print one JSON document.
    """
    wanted = filters.read()
    found = administer(options, lambda administration: DeadLetterDesk(administration).page(wanted, limit + 1))
    if json:
        return print_json(found[:limit])
    if not found:
        return say("There are no such dead letters.")
    columns = ("id", "died", "service", "tenant", "type", "key", "state", "tries", "reason")
    print_table(columns, [_row(letter) for letter in found[:limit]])
    if len(found) > limit:
        note(f"There are more than {limit:,}; --limit shows more of them.")


def show(id: str, /, *, json: bool = False, options: Options = DEFAULT) -> None:
    """Show all that is known of a dead letter: the reason, where in the code it failed, and the event as it is.

    Parameters
    ----------
    id
        Its id, or the beginning of it.
    json
        Print one JSON document.
    """
    letter = administer(options, lambda administration: DeadLetterDesk(administration).get(id))
    if json:
        return print_json(letter.describe())
    width = max(len(name) for name, _ in _facts(letter))
    for name, value in _facts(letter):
        say(f"{name.ljust(width)}  {value}")
    for title, text in (("traceback", letter.traceback.rstrip()), ("payload", _payload(letter))):
        if text:
            say("")
            say(f"{title}:")
            say(text)


def one_line(text: str) -> str:
    """The first line of a reason, and of that what fits."""
    line = next(iter(text.splitlines()), "")
    return line if len(line) <= LONGEST_REASON else f"{line[: LONGEST_REASON - 1]}…"


def _row(letter: FoundLetter) -> tuple[str, ...]:
    return (
        str(letter.id)[:8],
        format_time(letter.died_at),
        letter.service,
        letter.tenant_id,
        letter.type or "-",
        letter.key or "-",
        f"{letter.state}, under way" if letter.job else letter.state,
        f"{letter.deliveries:,}",
        one_line(letter.reason),
    )


def _facts(letter: WholeLetter) -> list[tuple[str, str]]:
    return [
        ("id", str(letter.id)),
        ("reason", letter.reason),
        ("state", letter.state),
        ("service", letter.service),
        ("tenant", letter.tenant_id),
        ("channel", letter.channel),
        ("part", str(letter.part)),
        ("event", letter.event_id or "-"),
        ("type", letter.type or "-"),
        ("key", letter.key or "-"),
        ("sequence", f"{letter.sequence:,}"),
        ("subject", letter.subject),
        ("deliveries", f"{letter.deliveries:,}"),
        ("published", format_time(letter.published_at)),
        ("died", format_time(letter.died_at)),
        ("trace", letter.trace or "-"),
        ("job", str(letter.job or "-")),
        *((f"header {name}", ", ".join(values)) for name, values in letter.headers.items()),
    ]


def _payload(letter: WholeLetter) -> str:
    """Made readable if it is JSON, and else as it is, as far as it is text."""
    try:
        return msgspec.json.format(letter.payload, indent=2).decode()
    except (msgspec.DecodeError, UnicodeDecodeError):
        return letter.payload.decode(errors="backslashreplace")
