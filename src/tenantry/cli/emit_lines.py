"""Events from JSON lines, emitted in batches. What is wrong is told with its line."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import IO, Final

import msgspec

from tenantry.errors import EventInvalid, TenantryError
from tenantry.outbox import Emission, emit_many
from tenantry.postgres.queries import Connection

BATCH: Final = 5000

_PLACE_IN_BATCH: Final = re.compile(r" \(event (\d+) of \d+\)")

Line = tuple[int, Emission]


async def emit_lines(connection: Connection, lines: Iterator[Line], progressed: Callable[[int], None]) -> list[str]:
    """Emit all of them in the connection's transaction; their ids."""
    ids: list[str] = []
    while batch := list(islice(lines, BATCH)):
        try:
            ids += await emit_many(connection, [emission for _, emission in batch])
        except TenantryError as problem:
            place = _PLACE_IN_BATCH.search(str(problem))
            line = batch[int(place[1]) - 1 if place else 0][0]
            raise TenantryError(f"line {line}: {_PLACE_IN_BATCH.sub('', str(problem))}") from problem
        progressed(len(batch))
    return ids


def read_lines(file: Path, like: Emission | None) -> Iterator[Line]:
    """The events with their lines; if all are to be `like` one, a line is data alone."""
    with _open(file) as stream:
        for number, line in enumerate(stream, 1):
            if not line.strip():
                continue
            if like:
                yield number, msgspec.structs.replace(like, data=read_data(line, f"line {number}"))
            else:
                yield number, _read_emission(line, number)


def read_data(text: str, place: str) -> msgspec.Raw:
    """JSON as it is written: a number stays what it was, however many digits it has."""
    try:
        return msgspec.json.decode(text, type=msgspec.Raw)
    except (msgspec.DecodeError, UnicodeEncodeError) as problem:
        raise EventInvalid("data", f"expected {place} to be JSON, got: {text.strip()[:80]!r} ({problem})") from None


def count_lines(file: Path) -> int | None:
    """For the progress; of standard input nobody knows."""
    if str(file) == "-":
        return None
    with _open(file) as stream:
        return sum(1 for _ in stream)


def _read_emission(line: str, number: int) -> Emission:
    try:
        members = msgspec.json.decode(line, type=dict[str, msgspec.Raw])
        data = members.pop("data", None)
        emission = msgspec.convert({name: msgspec.json.decode(raw) for name, raw in members.items()}, Emission)
    except (msgspec.DecodeError, UnicodeEncodeError) as problem:
        raise EventInvalid("", f"line {number}: expected an object with tenant, type and data: {problem}") from None
    return msgspec.structs.replace(emission, data=data)


@contextmanager
def _open(file: Path) -> Iterator[IO[str]]:
    if str(file) == "-":
        yield sys.stdin
        return
    try:
        with file.open(encoding="utf-8") as stream:
            yield stream
    except (OSError, UnicodeDecodeError) as problem:
        raise EventInvalid("file", f"cannot read --file {file}: {getattr(problem, 'strerror', problem)}") from None
