"""The API keeps to its OpenAPI document, whatever it is sent."""

from __future__ import annotations

import asyncio
from contextlib import nullcontext, suppress
from typing import Any

import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from hypothesis.errors import Unsatisfiable
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from tenantry.tenants.principal import SCOPES
from tenantry.tenants.spec import TenantSpec
from tests.api.conftest import Api

EXAMPLES = 12
CHECKS: list[Any] = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]


async def test_whatever_is_sent_the_answer_is_one_that_the_document_names(api: Api) -> None:
    await api.administration.put(TenantSpec(id="acme"), "test")
    _, text = await api.keys.create("test", name="test", scopes=["*"])
    await asyncio.to_thread(_explore, api.server.url, {"Authorization": f"Bearer {text}"})


def _explore(url: str, headers: dict[str, str]) -> None:
    schema = schemathesis.openapi.from_url(f"{url}/openapi.json")
    found: Any = schema.get_all_operations()
    operations = [operation.ok() for operation in found]
    assert len(operations) > 25
    for operation in operations:
        for mode in (GenerationMode.POSITIVE, GenerationMode.NEGATIVE):
            _explore_operation(operation, mode, headers)


def _explore_operation(operation: Any, mode: GenerationMode, headers: dict[str, str]) -> None:
    @settings(
        max_examples=EXAMPLES,
        derandomize=True,
        database=None,
        deadline=None,
        phases=[Phase.explicit, Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation.as_strategy(generation_mode=mode), is_known=st.booleans())
    def keeps_to_the_document(case: Any, is_known: bool) -> None:
        if mode == GenerationMode.POSITIVE and is_known and "id" in case.path_parameters:
            case.path_parameters["id"] = "acme"
        case.call_and_validate(headers=headers, checks=CHECKS)

    # Where nothing can be sent, nothing wrong can be sent either.
    with suppress(Unsatisfiable) if mode == GenerationMode.NEGATIVE else nullcontext():
        keeps_to_the_document()


async def test_the_document_says_what_each_route_is_for_and_how_to_get_in(api: Api) -> None:
    anybody = await api.anybody()
    document = (await anybody.get("/openapi.json")).json()
    assert document["components"]["securitySchemes"]["bearer"]["scheme"] == "bearer"
    open_to_all = set()
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            assert operation["summary"], path
            assert operation["description"], path
            assert operation["responses"]["500"]["content"]["application/problem+json"], (method, path)
            if "security" in operation:
                scope = operation["description"].rpartition("scope `")[2].removesuffix("`.")
                assert scope in SCOPES, (method, path)
                assert {"401", "403", "503"} <= set(operation["responses"])
            else:
                open_to_all.add(path)
    assert open_to_all == {"/healthz", "/readyz", "/v1/hooks/provisioning"}
