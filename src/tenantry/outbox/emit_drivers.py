"""Calls a function of the outbox through whatever connection an application has.

Connections are told apart by the names of their classes, so that no driver is imported but the one in use.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, Final

from tenantry.outbox.emit_errors import explained

# All arguments are sent as texts: an application may have codecs of its own for what else there is.
_TYPES: Final = {
    "data": "jsonb",
    "extensions": "jsonb",
    "events": "jsonb",
    "time": "timestamptz",
    "part": "integer",
    "fence": "bigint",
}

Arguments = Mapping[str, str]


def call(connection: object, function: str, arguments: Arguments) -> Any:
    """What the function returns; of an asynchronous connection, an awaitable of it."""
    return _driver(type(connection))(connection, function, arguments)


def _psycopg(connection: Any, function: str, arguments: Arguments) -> Any:
    from psycopg import Cursor
    from psycopg.rows import scalar_row

    # A cursor of our own, whatever kind of cursors and rows the connection makes.
    with explained(), Cursor(connection, row_factory=scalar_row) as cursor:
        return cursor.execute(_statement(function, tuple(arguments), "%s"), list(arguments.values())).fetchone()


async def _psycopg_async(connection: Any, function: str, arguments: Arguments) -> Any:
    from psycopg import AsyncCursor
    from psycopg.rows import scalar_row

    with explained():
        async with AsyncCursor(connection, row_factory=scalar_row) as cursor:
            await cursor.execute(_statement(function, tuple(arguments), "%s"), list(arguments.values()))
            return await cursor.fetchone()


async def _asyncpg(connection: Any, function: str, arguments: Arguments) -> Any:
    with explained():
        return await connection.fetchval(_statement(function, tuple(arguments), "${number}"), *arguments.values())


def _sqlalchemy(connection: Any, function: str, arguments: Arguments) -> Any:
    from sqlalchemy import text

    with explained():
        result = connection.execute(text(_statement(function, tuple(arguments), ":{name}")), arguments)
        return result.scalar_one()


async def _sqlalchemy_async(connection: Any, function: str, arguments: Arguments) -> Any:
    from sqlalchemy import text

    with explained():
        result = await connection.execute(text(_statement(function, tuple(arguments), ":{name}")), arguments)
        return result.scalar_one()


def _of_cursor(call: Callable[..., Any]) -> Callable[..., Any]:
    return lambda cursor, *rest: call(cursor.connection, *rest)


_DRIVERS: Final[Mapping[str, Callable[..., Any]]] = {
    "psycopg.Connection": _psycopg,
    "psycopg.Cursor": _of_cursor(_psycopg),
    "psycopg.AsyncConnection": _psycopg_async,
    "psycopg.AsyncCursor": _of_cursor(_psycopg_async),
    "asyncpg.Connection": _asyncpg,
    "asyncpg.PoolConnectionProxy": _asyncpg,
    "sqlalchemy.Connection": _sqlalchemy,
    "sqlalchemy.Session": _sqlalchemy,
    "sqlalchemy.scoped_session": _sqlalchemy,
    "sqlalchemy.AsyncConnection": _sqlalchemy_async,
    "sqlalchemy.AsyncSession": _sqlalchemy_async,
    "sqlalchemy.async_scoped_session": _sqlalchemy_async,
}


def is_connection(value: object) -> bool:
    """Whether it is one that functions can be called through."""
    return _find_driver(type(value)) is not None


def _find_driver(kind: type) -> Callable[..., Any] | None:
    names = (f"{each.__module__.partition('.')[0]}.{each.__name__}" for each in kind.__mro__)
    return next((_DRIVERS[name] for name in names if name in _DRIVERS), None)


def _driver(kind: type) -> Callable[..., Any]:
    if (found := _find_driver(kind)) is not None:
        return found
    raise TypeError(
        f"expected a connection, one of {', '.join(_DRIVERS)}, got: {kind.__module__}.{kind.__qualname__}; "
        "with any other driver call the SQL function tenantry.emit"
    )


@lru_cache
def _statement(function: str, names: tuple[str, ...], placeholder: str) -> str:
    """With only those arguments that are given: what most calls leave out need not be parsed each time."""
    given = (
        f'"{name}" => cast(cast({placeholder.format(number=number, name=name)} as text) as {_TYPES.get(name, "text")})'
        for number, name in enumerate(names, 1)
    )
    return f"select tenantry.{function}({', '.join(given)})"
