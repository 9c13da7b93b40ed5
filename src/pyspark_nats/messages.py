"""Rows to messages: what the columns mean, and the subject that a template makes of them."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    DecimalType,
    IntegralType,
    MapType,
    StringType,
    StructType,
)

from nats_bulk import InvalidMessage, Message
from nats_bulk.wire import require_subject
from pyspark_nats.errors import OptionInvalid, WriteFailed
from pyspark_nats.message_ids import MessageIds

# The server acts upon the headers that begin so. In rows that were read they say how a message was to be stored where
# it was: its old id would make the server drop the new message, and its rollup would purge the stream it goes to.
_SERVER_HEADERS: Final = "nats-"
# That a message is to expire, though, is meant for wherever it is.
_KEPT: Final = "nats-ttl"

_IN_SUBJECTS: Final = (StringType, IntegralType, DecimalType, BooleanType, DateType)
_IN_BRACES: Final = re.compile(r"\{([^{}]+)\}")

Headers = dict[str, list[str]]


class Messages:
    """Made on the driver, where it refuses columns that cannot be published; used in the tasks.

    `data` is the payload, where null is an empty one. `headers` go out without those that begin with Nats-, but for
    Nats-TTL; a header that is null is left out. `id` is the Nats-Msg-Id as it is; without it, one is made.
    """

    def __init__(self, schema: StructType, template: str) -> None:
        self._template = SubjectTemplate(template or "{subject}")
        self._places = {name: place for place, name in enumerate(schema.names)}
        _require_columns(schema, self._template.columns, has_option=bool(template))

    def of(self, batch: pa.RecordBatch, ids: MessageIds) -> list[Message]:
        payloads = pc.fill_null(self._column(batch, "data").cast(pa.large_binary()), b"").to_pylist()
        subjects = self._subjects(batch)
        headers: list[Headers | None] = [None] * len(payloads)
        if "headers" in self._places:
            headers = list(map(_headers, self._column(batch, "headers").to_pylist()))
        if "id" in self._places:
            given = self._column(batch, "id")
            _require_no_null(given, "id")
            names = given.to_pylist()
        else:
            names = list(map(ids.of, subjects, headers, payloads))
        return list(map(Message, subjects, payloads, names, headers))

    def _subjects(self, batch: pa.RecordBatch) -> list[str]:
        columns = {name: self._column(batch, name) for name in self._template.columns}
        for name, column in columns.items():
            _require_no_null(column, name)
        return self._template.fill(columns, batch.num_rows)

    def _column(self, batch: pa.RecordBatch, name: str) -> pa.Array:
        return batch.column(self._places[name])


class SubjectTemplate:
    """`orders.{region}.created`: what is in braces is a column. Its values may have dots in them."""

    def __init__(self, template: str) -> None:
        # Texts and names of columns take turns.
        self._parts = _IN_BRACES.split(template)
        self.columns = tuple(dict.fromkeys(self._parts[1::2]))
        try:
            if any(brace in text for text in self._parts[::2] for brace in "{}"):
                raise InvalidMessage("braces go around the name of a column")
            require_subject("x".join(self._parts[::2]))
        except InvalidMessage as problem:
            raise OptionInvalid(
                f"expected subject to be like orders.{{region}}.created, where region is a column, got: {template!r}; "
                f"{problem}"
            ) from None

    def fill(self, columns: dict[str, pa.Array], rows: int) -> list[str]:
        texts = {name: column.cast(pa.string()) for name, column in columns.items()}
        if not texts:
            return self._parts * rows
        parts = [texts[part] if place % 2 else part for place, part in enumerate(self._parts)]
        filled: list[str] = pc.binary_join_element_wise(*parts, "").to_pylist()
        return filled


# -- on the driver -----------------------------------------------------------------------------------------------------


def _require_columns(schema: StructType, in_subject: Sequence[str], *, has_option: bool) -> None:
    types = {field.name: field.dataType for field in schema}
    known = {"data", "subject", "headers", "id", *in_subject}
    if "data" not in types:
        raise OptionInvalid(f"expected a column data, the payload, got: {_names(schema)}")
    if not has_option and "subject" not in types:
        raise OptionInvalid(
            "expected a column subject, or the option subject, such as orders.created or orders.{region}.created, "
            f"got: {_names(schema)}"
        )
    if missing := [name for name in in_subject if name not in types]:
        raise OptionInvalid(
            f"expected the option subject to name columns, got: {missing[0]}; the columns are {_names(schema)}"
        )
    for name, wanted, fits in _WANTED:
        if name in types and not fits(types[name]):
            raise OptionInvalid(
                f"expected column {name} to be {wanted}, got: {types[name].simpleString()}; cast it, or use to_json"
            )
    extra = [name for name in schema.names if name not in known or schema.names.count(name) > 1]
    if extra:
        raise OptionInvalid(
            "expected the columns data, subject, headers and id, each at most once, and those that the option subject "
            f"names, got also: {', '.join(extra)}; select what is to be written"
        )
    for name in in_subject:
        if not isinstance(types[name], _IN_SUBJECTS):
            raise OptionInvalid(
                f"expected column {name} to be a string, whole number, decimal, boolean or date to be part of a "
                f"subject, got: {types[name].simpleString()}; cast it to a string"
            )


def _are_headers(given: DataType) -> bool:
    if not (isinstance(given, MapType) and isinstance(given.keyType, StringType)):
        return False
    value = given.valueType.elementType if isinstance(given.valueType, ArrayType) else given.valueType
    return isinstance(value, StringType)


_WANTED: Final[tuple[tuple[str, str, Callable[[DataType], bool]], ...]] = (
    ("data", "binary or string", lambda given: isinstance(given, BinaryType | StringType)),
    ("headers", "map<string,string> or map<string,array<string>>", _are_headers),
    ("id", "string", lambda given: isinstance(given, StringType)),
)


def _names(schema: StructType) -> str:
    return ", ".join(schema.names) or "no column"


# -- in a task ---------------------------------------------------------------------------------------------------------


def _require_no_null(column: pa.Array, name: str) -> None:
    if column.null_count:
        raise WriteFailed(
            f"expected column {name} to have a value in every row, got null in {column.null_count} of {len(column)} "
            "rows of a batch; filter these rows out, or fill them"
        )


def _headers(pairs: list[tuple[str, str | list[str | None] | None]] | None) -> Headers | None:
    headers: Headers = {}
    for name, given in pairs or ():
        lowered = name.lower()
        if given is not None and (lowered == _KEPT or not lowered.startswith(_SERVER_HEADERS)):
            headers[name] = [given] if isinstance(given, str) else [value for value in given if value is not None]
    return headers or None
