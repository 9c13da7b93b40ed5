"""What cannot be taken is refused with a problem that says why, and nothing of it is stored."""

from __future__ import annotations

import asyncio
import gzip
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from tenantry.api.http_protocol import LARGEST_HEAD
from tests.api.conftest import Api
from tests.ingest.conftest import BATCH, STRUCTURED, Sender, event, make_sender


def require_problem(answer: httpx.Response, status: int, **expected: Any) -> dict[str, Any]:
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.headers["cache-control"] == "no-store"
    document: dict[str, Any] = answer.json()
    assert {"type", "title", "status", "detail", "instance"} <= document.keys()
    assert {name: document.get(name) for name in expected} == expected
    return document


INVALID: list[tuple[dict[str, Any], str]] = [
    ({"id": ""}, "id"),
    ({"id": "x" * 257}, "id"),
    ({"id": "   "}, "id"),
    ({"id": "a\nb"}, "id"),
    ({"id": 7}, "id"),
    ({"source": ""}, "source"),
    ({"type": "order created"}, "type"),
    ({"type": "order.>"}, "type"),
    ({"type": "x" * 201}, "type"),
    ({"specversion": "0.3"}, "specversion"),
    ({"time": "yesterday"}, "time"),
    ({"time": "2026-01-01T00:00:00"}, "time"),
    ({"data_base64": "AAAA"}, "data_base64"),
    ({"data_base64": "!", "data": None}, "data_base64"),
    ({"Extension": "x"}, "Extension"),
    ({"extension": {"a": 1}}, "extension"),
    ({"traceparent": "00-1-2-3"}, "traceparent"),
    ({"traceparent": f"00-{'a' * 32}-{'b' * 16}-01", "tracestate": "a\r\nb"}, "tracestate"),
]


@pytest.mark.parametrize(("change", "field"), INVALID)
async def test_an_event_that_is_not_valid_is_refused_with_its_field(
    acme: Sender, change: dict[str, Any], field: str
) -> None:
    wrong = event("1") | change
    if change.get("data_base64") == "!":
        del wrong["data"]
    require_problem(await acme.send(wrong), 422, field=field, type="urn:tenantry:problem:invalid-event")
    assert await acme.stored() == []


@pytest.mark.parametrize("missing", ["id", "source", "type", "specversion"])
async def test_a_missing_attribute_is_named(acme: Sender, missing: str) -> None:
    wrong = event("1")
    del wrong[missing]
    require_problem(await acme.send(wrong), 422, field=missing)
    binary = {f"ce-{name}": wrong[name] for name in ("id", "source", "type", "specversion") if name in wrong}
    require_problem(await acme.client.post("/v1/events", headers=binary), 422, field=missing)


async def test_one_invalid_event_keeps_a_whole_batch_out(acme: Sender) -> None:
    batch = [event(str(number)) for number in range(150)]
    batch[120]["type"] = "not a type"
    require_problem(await acme.send(batch), 422, index=120, field="type")
    require_problem(await acme.send([event("1"), 7]), 422, index=1)
    assert await acme.stored() == []


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"null",
        b"[]",
        b'"text"',
        b"\xef\xbb\xbf{}",
        json.dumps(event("1")).encode("utf-16"),
        json.dumps(event("1", data="\ud800")).encode(),
        json.dumps(event("1", data="low \udc00")).encode(),
        json.dumps(event("1", source="\ud800x")).encode(),
        json.dumps(event("1", data=float("nan"))).encode(),
        json.dumps(event("1", data="é"), ensure_ascii=False).encode("latin-1"),
        json.dumps(event("1")).encode().replace(b'"data"', b'"type":"other","data"'),
        json.dumps(event("1"), separators=(",", ":"))
        .encode()
        .replace(b'"data"', b'"tenantid":"a","tenantid":"b","data"'),
        json.dumps(event("1")).encode().replace(b'{"order": 7}', b"[" * 200_000 + b"]" * 200_000),
        json.dumps(event("1")).encode().replace(b'{"order": 7}', b'"\x00"'),
        json.dumps(event("1")).encode() + b"x",
    ],
)
async def test_what_is_no_event_is_refused(acme: Sender, body: bytes) -> None:
    require_problem(await acme.send_bytes(body), 422)
    require_problem(await acme.send_bytes(b"[" + body + b"]", BATCH), 422)
    assert await acme.stored() == []


async def test_deep_nesting_is_refused_in_every_place(acme: Sender) -> None:
    deep = b"[" * 100_000
    require_problem(await acme.send_bytes(deep), 422)
    require_problem(await acme.send_bytes(deep, BATCH), 422)
    binary = {"ce-specversion": "1.0", "ce-id": "1", "ce-source": "/s", "ce-type": "t"}
    require_problem(await acme.send_bytes(deep, "application/json", **binary), 422, field="data")
    spaced = b'{ "specversion":"1.0","id":"1","source":"/s","type":"t","data":' + b"[" * 900 + b"]" * 900 + b"}"
    assert (await acme.send_bytes(spaced)).status_code in (202, 422)


async def test_binary_mode_that_makes_no_sense_is_refused(acme: Sender) -> None:
    headers = {"ce-specversion": "1.0", "ce-id": "1", "ce-source": "/s", "ce-type": "t"}
    cases: list[tuple[dict[str, str], bytes, str, str]] = [
        ({"ce-id": "%FF"}, b"", "text/plain", "id"),
        ({"ce-data": "x"}, b"", "text/plain", "data"),
        ({"ce-datacontenttype": "x"}, b"", "text/plain", "datacontenttype"),
        ({}, b"{", "application/json", "data"),
        ({}, b'"\xe9"', "application/json", "data"),
        ({}, "{}".encode("utf-16"), "application/problem+json", "data"),
        ({"ce-bad_name": "x"}, b"", "text/plain", "bad_name"),
    ]
    for more, body, content_type, field in cases:
        require_problem(await acme.send_bytes(body, content_type, **headers | more), 422, field=field)
    many = {f"ce-x{number}": "x" for number in range(80)}
    require_problem(await acme.send_bytes(b"", "text/plain", **headers | many), 422)
    twice = [*headers.items(), ("ce-id", "2")]
    require_problem(await acme.client.post("/v1/events", headers=twice), 422, field="id")


async def test_types_and_encodings_that_are_not_known_get_a_415(acme: Sender) -> None:
    body = json.dumps(event("1")).encode()
    for content_type in ("application/json", "text/plain", "application/cloudevents+avro", ""):
        problem = require_problem(await acme.send_bytes(body, content_type), 415)
        assert STRUCTURED in problem["detail"]
    require_problem(await acme.send_bytes(body, f"{STRUCTURED}; charset=utf-16"), 415)
    zipped = {"Content-Encoding": "gzip"}
    require_problem(await acme.send_bytes(gzip.compress(body), STRUCTURED, **zipped), 415)
    assert (await acme.send_bytes(body, STRUCTURED, **{"Content-Encoding": "identity"})).status_code == 202


async def test_batches_have_bounds(acme: Sender) -> None:
    require_problem(await acme.send([]), 422)
    require_problem(await acme.send([event(str(number)) for number in range(1001)]), 422)
    require_problem(await acme.send_bytes(b"[" + b" " * (8 << 20) + b"]", BATCH), 413)


async def test_an_event_beyond_the_tenants_limit_gets_a_413(api: Api) -> None:
    acme = await make_sender(api, overrides={"payload": "2KiB"})
    require_problem(await acme.send(event("1", data="x" * 2000)), 413, type="urn:tenantry:problem:event-too-large")
    require_problem(await acme.send([event("1"), event("2", data="x" * 2000)]), 413, index=1)
    require_problem(await acme.send_bytes(b"x" * 5000), 413)
    assert await acme.stored() == []
    # What is in between is found out by the byte: the stream takes exactly what is let through.
    bare = len((await _stored_document(acme)).document)
    room = 2048 - bare - len("Nats-Msg-Id: acme/p") - len("NATS/1.0") - len("traceparent: ") - 55 - 4 * 2
    assert (await acme.send(event("q", data="x" * room))).json()["spooled"] == 0
    require_problem(await acme.send(event("r", data="x" * (room + 1))), 413)


async def _stored_document(acme: Sender) -> Any:
    await acme.send(event("p", data=""))
    (message,) = await acme.stored()
    return message


async def test_bodies_without_a_length_are_bounded_too(api: Api) -> None:
    acme = await make_sender(api, overrides={"payload": "2KiB"})

    async def endless() -> AsyncIterator[bytes]:
        for _ in range(100):
            yield b" " * 1000

    answer = await acme.client.post("/v1/events", content=endless(), headers={"Content-Type": STRUCTURED})
    require_problem(answer, 413)


async def test_a_huge_head_is_cut_off(acme: Sender) -> None:
    host, port = acme.api.server.host, acme.api.server.port
    reader, writer = await asyncio.open_connection(host, port)
    writer.write(b"POST /v1/events HTTP/1.1\r\nHost: x\r\nce-id: " + b"x" * LARGEST_HEAD)
    answer = asyncio.ensure_future(reader.read())
    while not answer.done():
        # One that is on its way when the server closes would reset the connection, so there is time between them.
        writer.write(b"x")
        await asyncio.wait([answer], timeout=0.2)
    assert answer.result().startswith(b"HTTP/1.1 431 ")
    writer.close()


async def test_other_methods_are_told_which_there_is(acme: Sender) -> None:
    for method in ("GET", "PUT", "DELETE", "PATCH", "OPTIONS"):
        for path in ("/v1/events", "/v1/tenants/acme/events"):
            answer = await acme.client.request(method, path)
            require_problem(answer, 405)
            assert answer.headers["allow"] == "POST"
    assert (await acme.client.head("/v1/events")).status_code == 405


async def test_parameters_and_channels_that_are_not_there_are_refused(acme: Sender) -> None:
    for query in ("chanel=events", "channel=events&channel=events", "channel=events&x=1"):
        answer = await acme.client.post(f"/v1/events?{query}", json=event("1"), headers={"Content-Type": STRUCTURED})
        require_problem(answer, 422)
    for channel in ("nothing", "", "%00", "a" * 1000):
        answer = await acme.send(event("1"), params={"channel": channel})
        problem = require_problem(answer, 404)
        assert "events" in problem["detail"]


async def test_a_slow_client_is_cut_off_and_holds_up_nobody(acme: Sender, monkeypatch: pytest.MonkeyPatch) -> None:
    front: Any = acme.api.server._server.config.loaded_app
    monkeypatch.setattr(front._events, "_read_seconds", 0.2)
    host, port = acme.api.server.host, acme.api.server.port
    reader, writer = await asyncio.open_connection(host, port)
    authorization = acme.client.headers["Authorization"]
    head = f"POST /v1/events HTTP/1.1\r\nHost: x\r\nAuthorization: {authorization}\r\nContent-Type: {STRUCTURED}\r\n"
    writer.write(f"{head}Content-Length: 1000\r\n\r\n{{".encode())
    assert (await acme.send(event("1"))).status_code == 202
    answer = await reader.read()
    assert answer.startswith(b"HTTP/1.1 408 ")
    assert b"application/problem+json" in answer
    writer.close()
    monkeypatch.setattr(front._events, "_read_seconds", 30.0)
    assert front._events._intake().room._bytes == 0


async def test_a_client_that_goes_away_leaves_nothing_behind(acme: Sender) -> None:
    host, port = acme.api.server.host, acme.api.server.port
    front: Any = acme.api.server._server.config.loaded_app
    room = front._events._intake
    _, writer = await asyncio.open_connection(host, port)
    authorization = acme.client.headers["Authorization"]
    head = f"POST /v1/events HTTP/1.1\r\nHost: x\r\nAuthorization: {authorization}\r\nContent-Type: {STRUCTURED}\r\n"
    writer.write(f"{head}Content-Length: 100000\r\n\r\n".encode() + b"x" * 50_000)
    async with asyncio.timeout(30):
        while not room().room._bytes:
            await asyncio.sleep(0.01)
        writer.close()
        while room().room._bytes:
            await asyncio.sleep(0.01)
    assert await acme.stored() == []
