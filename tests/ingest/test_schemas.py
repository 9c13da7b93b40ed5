"""Schemas for events: set by those who may, followed within a second, and no way to do harm with."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.api.conftest import Api, StartApi
from tests.ingest.conftest import Sender, event, make_sender

PATH = "/v1/tenants/acme/schemas"
ORDER: dict[str, Any] = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "type": "object",
    "required": ["lines"],
    "properties": {"lines": {"type": "array", "items": {"$ref": "#/$defs/line"}}},
    "$defs": {"line": {"type": "object", "properties": {"price": {"type": "number"}}}},
}


async def test_a_schema_is_set_seen_listed_replaced_and_deleted(acme: Sender) -> None:
    client = acme.client
    assert (await client.get(PATH)).json() == {"schemas": []}
    created = await client.put(f"{PATH}/order.created", json=ORDER)
    assert created.status_code == 201, created.text
    assert (await client.put(f"{PATH}/order.created", json=ORDER)).status_code == 200
    seen = (await client.get(f"{PATH}/order.created")).json()
    assert (seen["type"], seen["schema"]) == ("order.created", ORDER)
    assert [each["type"] for each in (await client.get(PATH)).json()["schemas"]] == ["order.created"]
    assert (await client.delete(f"{PATH}/order.created")).status_code == 204
    assert (await client.delete(f"{PATH}/order.created")).status_code == 404
    assert (await client.get(f"{PATH}/order.created")).status_code == 404
    acts = [each.act for each in await acme.api.administration.audit.newest(3)]
    assert acts == ["schema.delete", "schema.put", "schema.put"]


async def test_data_that_does_not_fit_is_refused_with_its_place(acme: Sender) -> None:
    await acme.client.put(f"{PATH}/order.created", json=ORDER)
    fits = event("1", data={"lines": [{"price": 1}]})
    wrong = event("2", data={"lines": [{"price": 1}, {"price": "much"}]})
    assert (await acme.send(fits)).status_code == 202
    answer = await acme.send(wrong)
    assert (answer.status_code, answer.json()["type"]) == (422, "urn:tenantry:problem:invalid-data")
    assert (answer.json()["field"], answer.json().get("index")) == ("/data/lines/1/price", None)
    batch = await acme.send([fits, wrong])
    assert (batch.json()["field"], batch.json()["index"]) == ("/data/lines/1/price", 1)
    none = event("3")
    del none["data"]
    assert (await acme.send(none)).json()["field"] == "/data"
    assert (await acme.send(event("4", type="other.type", data=7))).status_code == 202
    await acme.client.delete(f"{PATH}/order.created")
    assert (await acme.send(wrong)).status_code == 202


async def test_another_process_follows_within_a_moment(start_api: StartApi) -> None:
    here, there = await start_api(), await start_api()
    acme = await make_sender(here)
    elsewhere = Sender(there, await there.client("events:write", tenant="acme"), "acme")
    for schema, status in (({"type": "string"}, 422), ({"type": "object"}, 202), ({"const": 1}, 422)):
        await acme.client.put(f"{PATH}/order.created", json=schema)
        assert (await acme.send(event("1"))).status_code == status
        await _until_status(elsewhere, status)
    await acme.client.delete(f"{PATH}/order.created")
    await _until_status(elsewhere, 202)


async def _until_status(sender: Sender, status: int) -> None:
    async with asyncio.timeout(10):
        while (await sender.send(event("1"))).status_code != status:
            await asyncio.sleep(0.02)


def _doubling(levels: int) -> dict[str, Any]:
    parts = {f"l{level}": {"allOf": [{"$ref": f"#/$defs/l{level + 1}"}] * 2} for level in range(levels)}
    return {"$ref": "#/$defs/l0", "$defs": parts | {f"l{levels}": {}}}


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "objekt"},
        {"$ref": "http://127.0.0.1:9/schema"},
        {"$ref": "file:///etc/passwd"},
        {"properties": {"a": {"$ref": "https://example.com/x"}}},
        {"$schema": "http://127.0.0.1:9/meta"},
        {"properties": {"a": {"$id": "http://127.0.0.1:9/", "$ref": "#/x"}}},
        {"$ref": "#"},
        {"$ref": "#/$defs/nothing"},
        {"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"},
        {"$dynamicRef": "#a"},
        {"pattern": "(?=x)"},
        {"pattern": "(x{1000}){1000}"},
        {"pattern": "("},
        {"enum": ["x" * 70_000]},
        _doubling(30),
        {"allOf": [{}] * 3000},
    ],
)
async def test_a_schema_that_is_wrong_or_could_do_harm_is_refused(acme: Sender, schema: dict[str, Any]) -> None:
    answer = await acme.client.put(f"{PATH}/order.created", json=schema)
    assert (answer.status_code, answer.json()["field"]) == (422, "schema"), answer.text
    assert (await acme.client.get(PATH)).json() == {"schemas": []}


async def test_a_pattern_that_others_choke_on_takes_no_time(acme: Sender) -> None:
    await acme.client.put(f"{PATH}/order.created", json={"pattern": "^(a+)+$"})
    async with asyncio.timeout(20):
        assert (await acme.send(event("1", data="a" * 50_000 + "b"))).status_code == 422


async def test_schemas_are_their_tenants_own(api: Api, acme: Sender) -> None:
    globex = await make_sender(api, "globex")
    await acme.client.put(f"{PATH}/order.created", json={"type": "string"})
    assert (await globex.send(event("1"))).status_code == 202
    assert (await globex.client.get(PATH)).status_code == 404
    assert (await globex.client.put(f"{PATH}/x", json={})).status_code == 404
    sender = await api.client("events:write", tenant="acme")
    assert (await sender.put(f"{PATH}/x", json={})).status_code == 403
