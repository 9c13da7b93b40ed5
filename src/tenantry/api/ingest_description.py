"""The routes for events in the OpenAPI document, written by hand: no framework stands in front of them to do it."""

from __future__ import annotations

from typing import Any, Final

from tenantry import event
from tenantry.api.ingest import BATCH, DEFAULT_CHANNEL, OWN_PATH, SCOPE, STRUCTURED, TENANT_PATH
from tenantry.api.parameters import NAME_PATTERN, TENANT_PATTERN
from tenantry.api.problems import describe_problems
from tenantry.ingest.intake import LARGEST_BATCH, MOST_IN_BATCH

_TEXT: Final = {"type": "string", "minLength": 1}
_TYPE: Final = {"type": "string", "pattern": f"^{event.TYPE_PATTERN}$", "maxLength": event.LONGEST_TYPE}
_EVENT: Final[dict[str, Any]] = {
    "title": "CloudEvent",
    "description": "CloudEvents 1.0 in JSON. Members that are not listed are extensions.",
    "type": "object",
    "required": ["specversion", "id", "source", "type"],
    "properties": {
        "specversion": {"const": "1.0"},
        "id": {
            **_TEXT,
            "maxLength": event.LONGEST_ID,
            "description": "sent again within the duplicate window, the event is stored once",
        },
        "source": {**_TEXT, "description": "what it is about or comes from, a URI reference"},
        "type": {**_TYPE, "examples": ["order.created"]},
        "subject": {"type": "string"},
        "time": {"type": "string", "format": "date-time", "description": "now, if it is left out"},
        "datacontenttype": {"type": "string", "examples": ["application/json"]},
        "dataschema": {"type": "string"},
        "data": {"description": "anything"},
        "data_base64": {"type": "string", "description": "instead of data, if that is not JSON"},
        "traceparent": {"type": "string", "description": "W3C trace context; else the request's, else a new one"},
        "tracestate": {"type": "string"},
    },
    "additionalProperties": {"type": ["string", "integer", "boolean"]},
    "example": {
        "specversion": "1.0",
        "id": "order-7",
        "source": "/shop",
        "type": "order.created",
        "data": {"order": 7},
    },
}
_RECEIPT: Final[dict[str, Any]] = {
    "title": "Receipt",
    "type": "object",
    "required": ["accepted", "duplicates", "spooled", "ids"],
    "properties": {
        "accepted": {"type": "integer", "description": "how many are stored now, or were before"},
        "duplicates": {"type": "integer", "description": "how many of them the stream had already"},
        "spooled": {"type": "integer", "description": "how many of them are in the outbox, and published from there"},
        "ids": {"type": "array", "items": {"type": "string"}},
    },
}
_BODY: Final = {
    "required": True,
    "content": {
        STRUCTURED: {"schema": {"$ref": "#/components/schemas/CloudEvent"}},
        BATCH: {
            "schema": {
                "type": "array",
                "minItems": 1,
                "maxItems": MOST_IN_BATCH,
                "items": {"$ref": "#/components/schemas/CloudEvent"},
            }
        },
        "application/octet-stream": {
            "schema": {"type": "string", "format": "binary", "description": "data of any type, with the headers ce-*"}
        },
    },
}
_PARAMETERS: Final = [
    {
        "name": "channel",
        "in": "query",
        "description": "the channel",
        "schema": {"type": "string", "pattern": NAME_PATTERN, "default": DEFAULT_CHANNEL},
    },
    *(
        {"name": f"ce-{name}", "in": "header", "description": "in binary mode", "schema": schema}
        for name, schema in (("specversion", {"const": "1.0"}), ("id", _TEXT), ("source", _TEXT), ("type", _TYPE))
    ),
]
_TENANT: Final = {
    "name": "id",
    "in": "path",
    "required": True,
    "description": "the tenant",
    "schema": {"type": "string", "pattern": TENANT_PATTERN},
    "example": "acme",
}
_MANNER: Final = f"""\
In structured mode (`{STRUCTURED}`), as a batch (`{BATCH}`, at most {MOST_IN_BATCH:,} events and \
{LARGEST_BATCH >> 20} MiB), or in binary mode, with the attributes as headers `ce-…` and the data as body. Of a batch \
all events are valid or none is stored. It is answered when all are stored.

Needs the scope `{SCOPE}`."""


def describe_ingest(document: dict[str, Any]) -> None:
    """Add the routes to the document."""
    document["components"]["schemas"] |= {"CloudEvent": _EVENT, "Receipt": _RECEIPT}
    document["paths"] |= {
        OWN_PATH: {"post": _operation("send_events", "Send events of the tenant that the key is for.", [])},
        TENANT_PATH: {"post": _operation("send_events_of_tenant", "Send events of a tenant.", [_TENANT])},
    }


def _operation(name: str, purpose: str, parameters: list[dict[str, Any]]) -> dict[str, Any]:
    problems = describe_problems(400, 401, 403, 404, 405, 408, 409, 415, 422, 429)
    problems[413]["description"] = "The event or the batch is too large."
    stored = {
        "description": "All events are stored.",
        "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Receipt"}}},
    }
    return {
        "tags": ["events"],
        "summary": name.replace("_", " ").title(),
        "description": f"{purpose}\n\n{_MANNER}",
        "operationId": name,
        "security": [{"bearer": []}],
        "parameters": [*parameters, *_PARAMETERS],
        "requestBody": _BODY,
        "responses": {"202": stored} | {str(status): each for status, each in problems.items()},
    }
