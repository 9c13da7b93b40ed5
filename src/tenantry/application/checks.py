"""Whether what is declared can be: names, types, functions."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable
from typing import Final

from tenantry.application.event import Key, require_key_path
from tenantry.errors import ApplicationInvalid, SubjectInvalid
from tenantry.event import is_name, require_type_pattern

NAME_PATTERN: Final = r"[a-z0-9](?:[a-z0-9_-]{0,46}[a-z0-9])?"
TABLE_PATTERN: Final = r"[a-z0-9](?:[a-z0-9_]{0,46}[a-z0-9])?"

NAME: Final = re.compile(NAME_PATTERN)
TABLE: Final = re.compile(TABLE_PATTERN)


def matches(pattern: re.Pattern[str], value: object) -> bool:
    return isinstance(value, str) and pattern.fullmatch(value) is not None


def require_channel(what: str, channel: str) -> None:
    if not is_name("channel", channel):
        raise ApplicationInvalid(f"expected the channel of {what} to be a name like events, got: {channel!r}")


def require_key(what: str, key: Key) -> None:
    if callable(key):
        return require_function(f"the key of {what}", key, "event")
    require_key_path(what, key)


def read_types(what: str, types: Iterable[str]) -> tuple[str, ...]:
    if isinstance(types, str):
        raise ApplicationInvalid(f"expected the types of {what} to be a list, like [{types!r}], got: {types!r}")
    try:
        wanted = tuple(require_type_pattern(each) for each in types)
    except SubjectInvalid as problem:
        raise ApplicationInvalid(f"{what} cannot be declared: {problem}") from None
    if not wanted:
        raise ApplicationInvalid(f"expected {what} to have types; leave them out to have all")
    return wanted


def require_function(what: str, function: object, *parameters: str) -> None:
    expected = f"expected {what} to be a function of {' and '.join(parameters)}"
    if not callable(function):
        raise ApplicationInvalid(f"{expected}, got: {function!r}")
    if inspect.iscoroutinefunction(function):
        raise ApplicationInvalid(f"{expected}, got one that is async: write def instead of async def")
    try:
        inspect.signature(function).bind(*parameters)
    except TypeError as problem:
        raise ApplicationInvalid(f"{expected}: {problem}") from None
    except ValueError:
        # Some built-in functions do not say what they take.
        return
