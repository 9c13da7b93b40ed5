"""Whatever is sent, the answer is one that the OpenAPI document names, and never a fault of ours."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from schemathesis import GenerationMode

from tests.api.test_schema import CHECKS
from tests.ingest.conftest import BATCH, STRUCTURED, Sender, event

PATHS = ("/v1/events", "/v1/tenants/{id}/events")

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=12), inner, max_size=4),
    max_leaves=12,
)
ATTRIBUTES = (
    "specversion",
    "id",
    "source",
    "type",
    "time",
    "subject",
    "data",
    "data_base64",
    "traceparent",
    "tenantid",
)
EVENTS = st.dictionaries(st.sampled_from(ATTRIBUTES) | st.text(max_size=8), JSON, max_size=5).map(
    lambda changes: event("1") | changes
)
HEADER_VALUES = st.text(st.characters(min_codepoint=32, max_codepoint=255), max_size=60).map(str.strip)


def exploring(examples: int) -> settings:
    return settings(
        max_examples=examples,
        derandomize=True,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )


async def test_the_document_is_kept_to_by_whoever_has_a_key_of_the_tenant(acme: Sender) -> None:
    headers = {"Authorization": acme.client.headers["Authorization"]}
    await asyncio.to_thread(_explore, acme.api.server.url, headers)
    assert await acme.stored()


def _explore(url: str, headers: dict[str, str]) -> None:
    schema = schemathesis.openapi.from_url(f"{url}/openapi.json")
    for path in PATHS:
        for mode in (GenerationMode.POSITIVE, GenerationMode.NEGATIVE):

            @exploring(60)
            @given(case=schema[path]["POST"].as_strategy(generation_mode=mode))
            def keeps_to_the_document(case: Any) -> None:
                if "id" in case.path_parameters:
                    case.path_parameters["id"] = "acme"
                case.query.pop("channel", None)
                case.call_and_validate(headers=headers, checks=CHECKS)

            keeps_to_the_document()


async def test_bytes_and_headers_of_any_kind_get_an_answer(acme: Sender) -> None:
    authorization = acme.client.headers["Authorization"]
    await asyncio.to_thread(_bombard, acme.api.server.url, authorization)


def _bombard(url: str, authorization: str) -> None:
    with httpx.Client(base_url=url, headers={"Authorization": authorization}, timeout=60) as client:

        def send(body: bytes, headers: list[tuple[bytes, bytes]]) -> None:
            answer = client.post("/v1/events", content=body, headers=headers)
            assert answer.status_code in (202, 400, 413, 415, 422), (answer.status_code, answer.text, body, headers)
            assert answer.json()

        @exploring(300)
        @given(body=st.binary(max_size=300), content_type=st.sampled_from([STRUCTURED, BATCH]) | HEADER_VALUES)
        def any_bytes(body: bytes, content_type: str) -> None:
            send(body, [(b"Content-Type", content_type.encode("latin-1"))])

        @exploring(300)
        @given(events=st.lists(EVENTS, max_size=3), is_batch=st.booleans(), compact=st.booleans())
        def any_events(events: list[Any], is_batch: bool, compact: bool) -> None:
            document = events if is_batch or not events else events[0]
            content_type = BATCH if isinstance(document, list) else STRUCTURED
            body = json.dumps(document, separators=(",", ":") if compact else None).encode()
            send(body, [(b"Content-Type", content_type.encode())])

        @exploring(300)
        @given(
            values=st.dictionaries(
                st.sampled_from(["ce-id", "ce-source", "ce-type", "ce-time", "ce-x", "content-type", "traceparent"]),
                HEADER_VALUES,
            ),
            body=st.binary(max_size=50) | JSON.map(lambda value: json.dumps(value).encode()),
        )
        def any_headers(values: dict[str, str], body: bytes) -> None:
            usual = {"ce-specversion": "1.0", "ce-id": "1", "ce-source": "/s", "ce-type": "t"}
            send(body, [(name.encode(), value.encode("latin-1")) for name, value in (usual | values).items()])

        for explore in (any_bytes, any_events, any_headers):
            explore()
