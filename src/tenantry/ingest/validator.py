"""JSON Schema, of a kind that strangers may register: nothing is fetched, and checking an event costs a bounded amount.

A schema that refers to itself, or to its parts in ever more ways, can make the check of a small event take for ever.
So references lead to other parts of the schema only, never in a circle, and what they unfold to is counted.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final
from urllib.parse import unquote

import jsonschema_rs
import msgspec

from tenantry.errors import DataInvalid, TenantInvalid
from tenantry.event import Attributes

LARGEST_SCHEMA: Final = 64 << 10
MOST_PARTS: Final = 2000
# Bytes of data times parts of the schema: about half a second at worst.
MOST_WORK: Final = 64 << 20

_NO_SCHEMAS: Final = ("const", "enum", "default", "examples")
_ELSEWHERE: Final = ("$dynamicRef", "$recursiveRef")
# Of the two engines this is the one that takes linear time, whatever the pattern; it knows no look-around.
_PATTERNS = jsonschema_rs.RegexOptions(size_limit=1 << 18, dfa_size_limit=1 << 20)


class Validator:
    """A schema, ready to check events."""

    def __init__(self, schema: Mapping[str, Any]) -> None:
        """TenantInvalid says what is wrong with the schema."""
        try:
            if len(msgspec.json.encode(schema)) > LARGEST_SCHEMA:
                raise _invalid(f"expected a schema of at most {LARGEST_SCHEMA:,} bytes")
            self._parts = _Unfolding(schema).count()
            self._compiled = jsonschema_rs.validator_for(
                dict(schema), offline=True, pattern_options=_PATTERNS, validate_formats=False
            )
        except RecursionError:
            raise _invalid("expected a schema that is not nested so deeply") from None
        except (ValueError, jsonschema_rs.ValidationError, jsonschema_rs.ReferencingError) as problem:
            reason = getattr(problem, "message", None) or str(problem).partition("\n")[0]
            path = "".join(f"/{part}" for part in getattr(problem, "instance_path", ()))
            raise _invalid(f"expected a JSON Schema, got at {path or '/'}: {reason[:300]}") from None

    def check(self, event: Attributes) -> None:
        """DataInvalid names the first place in the data that does not fit."""
        raw = bytes(event.data)
        if not raw:
            raise DataInvalid("/data", f"expected JSON data that fits the schema for {event.type}, got none")
        if len(raw) * self._parts > MOST_WORK:
            most = MOST_WORK // self._parts
            raise DataInvalid(
                "/data", f"expected at most {most:,} bytes of data for so large a schema, got: {len(raw):,}"
            )
        try:
            data = msgspec.json.decode(raw)
        except (ValueError, RecursionError) as problem:
            raise DataInvalid("/data", f"expected data that can be checked against a schema: {problem}") from None
        found = next(iter(self._compiled.iter_errors(data)), None)
        if found is not None:
            raise DataInvalid(_pointer(found.instance_path), f"its data does not fit the schema: {found.message[:300]}")


class _Unfolding:
    """How many parts a schema has if each reference is replaced by what it refers to."""

    def __init__(self, schema: Mapping[str, Any]) -> None:
        self._schema = schema
        self._counted: dict[str, int] = {}
        self._open: set[str] = set()

    def count(self) -> int:
        parts = self._count(self._schema)
        if parts > MOST_PARTS:
            raise _invalid(f"expected a schema of at most {MOST_PARTS:,} parts with its references unfolded, got: more")
        return parts

    def _count(self, part: object) -> int:
        if isinstance(part, list):
            return sum(self._count(each) for each in part)
        if not isinstance(part, dict):
            return 0
        parts = 1
        for name, value in part.items():
            if name in _ELSEWHERE or (name == "$id" and isinstance(value, str) and part is not self._schema):
                raise _invalid(f"expected a schema without {name}, except for $id at its top")
            if name == "$ref" and isinstance(value, str):
                parts += self._count_target(value)
            elif name not in _NO_SCHEMAS:
                parts += self._count(value)
        return parts

    def _count_target(self, reference: str) -> int:
        if reference in self._open:
            raise _invalid(f"expected references that do not lead in a circle, got: {reference[:80]!r}")
        if reference not in self._counted:
            self._open.add(reference)
            self._counted[reference] = self._count(self._find(reference))
            self._open.remove(reference)
        return self._counted[reference]

    def _find(self, reference: str) -> object:
        if not reference.startswith("#/"):
            raise _invalid(f"expected $ref to lead to a part of the schema, like #/$defs/line, got: {reference[:80]!r}")
        found: Any = self._schema
        for step in _steps(reference):
            try:
                found = found[int(step)] if isinstance(found, list) else found[step]
            except (KeyError, IndexError, ValueError, TypeError):
                raise _invalid(f"expected $ref to lead to a part of the schema, got: {reference[:80]!r}") from None
        return found


def _steps(reference: str) -> Iterator[str]:
    for step in unquote(reference[2:]).split("/"):
        yield step.replace("~1", "/").replace("~0", "~")


def _pointer(path: list[str | int]) -> str:
    return "/data" + "".join(f"/{str(step).replace('~', '~0').replace('/', '~1')}" for step in path)


def _invalid(problem: str) -> TenantInvalid:
    return TenantInvalid("schema", problem)
