"""CloudEvents in binary mode: the attributes are headers of the request, and its body is the data.

https://github.com/cloudevents/spec/blob/v1.0.2/cloudevents/bindings/http-protocol-binding.md#31-binary-content-mode
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterable
from typing import Final
from urllib.parse import unquote_to_bytes

import msgspec

from tenantry.errors import EventInvalid

PREFIX: Final = b"ce-"
MOST_ATTRIBUTES: Final = 64

_QUOTED = re.compile(rb'"((?:[^"\\]|\\.)*)"')
_ESCAPED = re.compile(rb"\\(.)")
_JSON = re.compile(r"(application|text)/json|[^/]+/[^/]+\+json")
_UTF8: Final = ("", "utf-8", "utf8", "us-ascii")
_encode = msgspec.json.Encoder().encode
_decode_raw = msgspec.json.Decoder(msgspec.Raw).decode


def is_binary(headers: Iterable[tuple[bytes, bytes]]) -> bool:
    return any(name.startswith(PREFIX) for name, _ in headers)


def document_of(headers: Iterable[tuple[bytes, bytes]], content_type: str, body: bytes) -> bytes:
    """The same event in structured mode."""
    members: dict[str, object] = {}
    for header, value in headers:
        if not header.startswith(PREFIX):
            continue
        name = header[len(PREFIX) :].decode("latin-1")
        if name in members:
            raise EventInvalid(name, f"expected the header ce-{name[:40]} once, got several")
        if name in ("data", "data_base64", "datacontenttype"):
            raise EventInvalid(name, f"expected data as the body and its type as Content-Type, got: ce-{name}")
        members[name] = _read_value(name, value)
        if len(members) > MOST_ATTRIBUTES:
            raise EventInvalid("", f"expected at most {MOST_ATTRIBUTES} headers that start with ce-")
    if content_type:
        members["datacontenttype"] = content_type
    if body:
        members |= _read_data(content_type, body)
    return _encode(members)


def _read_value(name: str, value: bytes) -> str:
    if quoted := _QUOTED.fullmatch(value.strip()):
        value = _ESCAPED.sub(rb"\1", quoted[1])
    try:
        return unquote_to_bytes(value).decode()
    except UnicodeDecodeError:
        raise EventInvalid(name, f"expected ce-{name[:40]} to be UTF-8 in percent-encoding") from None


def _read_data(content_type: str, body: bytes) -> dict[str, object]:
    media_type = content_type.partition(";")[0].strip().lower()
    if media_type and not _JSON.fullmatch(media_type):
        return {"data_base64": base64.b64encode(body).decode()}
    try:
        body.decode()
        return {"data": _decode_raw(body)}
    except RecursionError:
        raise EventInvalid("data", "expected JSON that is not nested so deeply") from None
    except ValueError as problem:
        if not media_type:
            return {"data_base64": base64.b64encode(body).decode(), "datacontenttype": "application/octet-stream"}
        raise EventInvalid("data", f"expected the body to be JSON in UTF-8, as Content-Type says: {problem}") from None
