"""Events come in by every mode that CloudEvents has for HTTP, and are stored as what was sent."""

from __future__ import annotations

import base64
import json
import re

import httpx
import pytest

from tests.api.conftest import Api
from tests.ingest.conftest import BATCH, Sender, event, make_sender, stored


@pytest.mark.parametrize("tier", ["pooled", "stream", "account"])
async def test_an_event_is_in_the_stream_when_it_is_answered(api: Api, tier: str) -> None:
    acme = await make_sender(api, tier=tier)
    answer = await acme.send(event("a-1", time="2026-01-02T03:04:05Z", subject="7"))
    assert (answer.status_code, answer.json()) == (
        202,
        {"accepted": 1, "duplicates": 0, "spooled": 0, "ids": ["a-1"]},
    )
    (message,) = await acme.stored()
    assert message.subject == "tenantry.tenants.acme.events.order.created"
    assert message.headers["Nats-Msg-Id"] == "acme/a-1"
    document = json.loads(message.document)
    trace = document.pop("traceparent")
    assert re.fullmatch("00-[0-9a-f]{32}-[0-9a-f]{16}-01", trace)
    assert message.headers["traceparent"] == trace
    assert document == event("a-1", time="2026-01-02T03:04:05Z", subject="7", tenantid="acme")


async def test_a_missing_time_is_added(acme: Sender) -> None:
    await acme.send([event("1"), event("2", time=None), event("3", time="2020-01-01T00:00:00+02:00")])
    times = [json.loads(each.document)["time"] for each in await acme.stored()]
    assert re.fullmatch(r"20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z", times[0])
    assert times == [times[0], times[0], "2020-01-01T00:00:00+02:00"]


async def test_a_batch_is_stored_in_its_order(acme: Sender) -> None:
    answer = await acme.send([event(str(number), data=number) for number in range(250)])
    assert answer.status_code == 202
    assert answer.json()["ids"] == [str(number) for number in range(250)]
    assert [json.loads(each.document)["data"] for each in await acme.stored()] == list(range(250))


async def test_binary_mode_with_json(acme: Sender) -> None:
    answer = await acme.client.post(
        "/v1/events",
        content=b'{"order": [7, 8.50]}',
        headers={
            "Content-Type": "application/json; charset=utf-8",
            "ce-specversion": "1.0",
            "ce-id": "Euro%20%E2%82%AC%20%F0%9F%98%80",
            "ce-source": '"/quoted \\"source\\""',
            "ce-type": "order.created",
            "ce-region": "eu",
        },
    )
    assert answer.status_code == 202, answer.text
    (message,) = await acme.stored()
    document = json.loads(message.document)
    assert (document["id"], document["source"]) == ("Euro € 😀", '/quoted "source"')
    assert (document["region"], document["datacontenttype"]) == ("eu", "application/json; charset=utf-8")
    assert b'"data":{"order": [7, 8.50]}' in message.document


@pytest.mark.parametrize(
    ("content_type", "body"),
    [("image/png", bytes(range(256))), ("text/plain", b"{}"), ("application/xml", b"<a/>"), ("", b"\xff")],
)
async def test_binary_mode_with_anything_else(acme: Sender, content_type: str, body: bytes) -> None:
    headers = {"ce-specversion": "1.0", "ce-id": "1", "ce-source": "/s", "ce-type": "picture"}
    request = acme.client.build_request("POST", "/v1/events", content=body, headers=headers)
    if content_type:
        request.headers["Content-Type"] = content_type
    answer = await acme.client.send(request)
    assert answer.status_code == 202, answer.text
    document = json.loads((await acme.stored())[0].document)
    assert base64.b64decode(document["data_base64"]) == body
    assert document["datacontenttype"] == content_type or "application/octet-stream"
    assert "data" not in document


async def test_binary_mode_without_data(acme: Sender) -> None:
    headers = {"ce-specversion": "1.0", "ce-id": "1", "ce-source": "/s", "ce-type": "ping"}
    assert (await acme.client.post("/v1/events", headers=headers)).status_code == 202
    assert "data" not in json.loads((await acme.stored())[0].document)


async def test_the_same_id_is_stored_once(acme: Sender) -> None:
    assert (await acme.send(event("same"))).json()["duplicates"] == 0
    again = await acme.send(event("same", data="another"))
    assert (again.status_code, again.json()["duplicates"]) == (202, 1)
    mixed = await acme.send([event("same"), event("new"), event("new")])
    assert mixed.json() == {"accepted": 3, "duplicates": 2, "spooled": 0, "ids": ["same", "new", "new"]}
    assert [each.headers["Nats-Msg-Id"] for each in await acme.stored()] == ["acme/same", "acme/new"]


async def test_the_same_id_of_two_tenants_is_two_events_even_in_a_shared_stream(api: Api) -> None:
    acme, globex = [await make_sender(api, name, tier="pooled") for name in ("acme", "globex")]
    assert (await acme.lane()).stream == (await globex.lane()).stream
    for sender in (acme, globex):
        assert (await sender.send(event("1"))).json()["duplicates"] == 0
        assert len(await sender.stored()) == 1


async def test_a_channel_is_chosen_by_parameter(acme: Sender) -> None:
    assert (await acme.send(event("1"), params={"channel": "properties"})).status_code == 202
    assert len(await acme.stored("properties")) == 1
    assert await acme.stored("events") == []


async def test_the_platform_sends_for_a_tenant_by_its_path(api: Api, acme: Sender) -> None:
    operator = await api.client("events:write")
    headers = {"Content-Type": BATCH}
    sent = await operator.post("/v1/tenants/acme/events", json=[event("1")], headers=headers)
    assert sent.status_code == 202, sent.text
    assert len(await acme.stored()) == 1
    lost = await operator.post("/v1/events", json=[event("1")], headers=headers)
    assert (lost.status_code, lost.json()["type"]) == (400, "urn:tenantry:problem:no-tenant")
    assert "/v1/tenants/{id}/events" in lost.json()["detail"]
    own = await acme.client.post("/v1/tenants/acme/events", json=[event("2")], headers=headers)
    assert own.status_code == 202


async def test_whatever_an_event_says_it_is_its_senders(
    acme: Sender, signals: list[tuple[str, dict[str, object]]]
) -> None:
    await acme.send(
        [event("1", tenantid="globex", tenant="initech"), event("2", tenantid="acme"), event("3", tenant=7)]
    )
    documents = [json.loads(each.document) for each in await acme.stored()]
    assert [each["tenantid"] for each in documents] == ["acme"] * 3
    assert not any("tenant" in each for each in documents)
    overridden = [fields["claimed"] for name, fields in signals if name == "tenants.claim_overridden"]
    assert overridden == ["globex", "initech", "7"]


async def test_a_trace_goes_on_from_the_event_else_from_the_request(acme: Sender) -> None:
    ours = f"00-{'a' * 32}-{'b' * 16}-01"
    theirs = f"00-{'c' * 32}-{'d' * 16}-00"
    headers = {"traceparent": theirs, "tracestate": "x=1"}
    await acme.send(
        [event("1", traceparent=ours, tracestate="y=2"), event("2"), event("3", traceparent=ours)], headers=headers
    )
    await acme.send(event("4"), headers={"traceparent": "nonsense", "tracestate": "x=1"})
    messages = await acme.stored()
    found = [(each.headers["traceparent"], each.headers.get("tracestate")) for each in messages]
    assert found[:3] == [(ours, "y=2"), (theirs, "x=1"), (ours, None)]
    assert "nonsense" not in found[3]
    for message, (parent, state) in zip(messages, found, strict=True):
        document = json.loads(message.document)
        assert (document["traceparent"], document.get("tracestate")) == (parent, state)


async def test_what_an_author_wrote_stays_as_it_was(acme: Sender) -> None:
    body = (
        b'{ "specversion" : "1.0", "id":"1",\n "source":"/s","type":"a.b", "big": 12345678901234,'
        b' "data": {"price": 1.10, "x":1e400, "a":1, "a":2, "text":"\\u00e9\xc3\xa9\\ud83d\\ude00"} }'
    )
    assert (await acme.send_bytes(body)).status_code == 202
    (message,) = await acme.stored()
    assert (
        b'"data":{"price": 1.10, "x":1e400, "a":1, "a":2, "text":"\\u00e9\xc3\xa9\\ud83d\\ude00"}' in message.document
    )
    assert json.loads(message.document)["big"] == 12345678901234


async def test_a_body_in_pieces_is_as_good(acme: Sender) -> None:
    async def pieces() -> httpx.AsyncByteStream:  # type: ignore[misc]
        for byte in json.dumps(event("1")).encode():
            yield bytes([byte])

    answer = await acme.client.post(
        "/v1/events", content=pieces(), headers={"Content-Type": "Application/CloudEvents+JSON; charset=UTF-8"}
    )
    assert answer.status_code == 202
    assert len(await stored(await acme.lane())) == 1
