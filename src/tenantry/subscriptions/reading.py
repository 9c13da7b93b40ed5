"""Makes events of messages: the boundary says whose they are, and the subscriber what their data is."""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Callable
from typing import Any, Final, Generic

import msgspec
from msgspec.structs import force_setattr

from tenantry.application import Event
from tenantry.application.event import Data
from tenantry.errors import EventUndecodable
from tenantry.tenants.boundary import TENANT_EXTENSION, override_claims

_LONGEST_REASON: Final = 2000


class Received(Event[Data], Generic[Data], frozen=True, kw_only=True):
    """An event with what else is looked at when it comes."""

    specversion: str
    data_base64: str | None = None
    tenantid: Any = None
    claimed: Any = msgspec.field(default=None, name="tenant")


class EventReader:
    """Reads events whose data is of one type: what msgspec knows, or a pydantic model."""

    def __init__(self, data: Any = None) -> None:
        self._validate = _pydantic_validator(data)
        wanted = msgspec.Raw if self._validate else Any if data is None else data
        decoder: msgspec.json.Decoder[Any] = msgspec.json.Decoder(Received[wanted])  # type: ignore[valid-type]
        self._decode = decoder.decode

    def read(self, payload: bytes, tenant: str, channel: str, sequence: int) -> Event[Any]:
        """EventUndecodable says why it is none, or none that the subscriber knows."""
        try:
            event: Received[Any] = self._decode(payload)
            if self._validate:
                raw = event.data
                force_setattr(event, "data", None if raw is None else self._validate(bytes(raw)))
            elif event.data_base64 is not None:
                force_setattr(event, "data", b64decode(event.data_base64, validate=True))
        except Exception as problem:
            # A validator of the application's own may raise anything, and what is nested too deeply is none of ours.
            reason = str(problem) or type(problem).__name__
            raise EventUndecodable(f"it cannot be decoded: {reason}"[:_LONGEST_REASON]) from None
        if event.specversion != "1.0" or not (event.id and event.source and event.type):
            raise EventUndecodable('expected a CloudEvent with specversion "1.0", an id, a source and a type')
        if event.tenantid is not None or event.claimed is not None:
            claims = {TENANT_EXTENSION: event.tenantid, "tenant": event.claimed}
            override_claims(tenant, {name: value for name, value in claims.items() if value is not None})
        force_setattr(event, "tenant", tenant)
        force_setattr(event, "channel", channel)
        force_setattr(event, "sequence", sequence)
        return event


def _pydantic_validator(data: Any) -> Callable[[bytes], Any] | None:
    if not hasattr(data, "__pydantic_validator__") and not hasattr(data, "model_validate_json"):
        return None
    from pydantic import TypeAdapter

    return TypeAdapter(data).validate_json
