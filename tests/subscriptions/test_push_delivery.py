"""One event to one URL, over real HTTP: what is sent, and what is made of the answer."""

from __future__ import annotations

import asyncio
import socket
import ssl
import threading
import uuid
from collections.abc import AsyncIterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import msgspec
import pytest
import trustme
from hypothesis import given, settings
from hypothesis import strategies as st
from standardwebhooks.webhooks import WebhookVerificationError

from tenantry.errors import EventInvalid, PushFailed, PushGone
from tenantry.service import end
from tenantry.subscriptions.push_address import AddressGuard
from tenantry.subscriptions.push_delivery import LARGEST_ANSWER, Deliverer, message_id, read_wait
from tenantry.subscriptions.push_endpoint import Order, PushEndpoint, State
from tenantry.subscriptions.push_resolver import LOOKUPS, LOOKUPS_OF_TENANT
from tenantry.subscriptions.push_secrets import PushSecrets
from tests.processes import wait_for
from tests.subscriptions.receiver import KEYRING, LOOPBACK, Receiver, Request, answering, receiving

SECRETS = PushSecrets(KEYRING)
DOCUMENT = '{"specversion":"1.0","id":"1","source":"s","type":"order.created","data":{"name":"Zoë"}}'.encode()

Seen = list[tuple[str, dict[str, object]]]


def endpoint(url: str, **more: Any) -> PushEndpoint:
    usual: dict[str, Any] = {
        "id": uuid.uuid4(),
        "tenant_id": "acme",
        "name": "orders",
        "url": url,
        "channel": "events",
        "types": (">",),
        "order": Order.PARALLEL,
        "max_in_flight": 10,
        "timeout_seconds": 30,
        "retries": 12,
        "secret_version": 1,
        "previous_secret_until": None,
        "state": State.ACTIVE,
        "state_reason": "",
        "revision": 1,
        "created_at": datetime.now(UTC),
        "updated_at": datetime.now(UTC),
    }
    return PushEndpoint(**usual | more)


def later(of: PushEndpoint, **more: Any) -> PushEndpoint:
    return msgspec.structs.replace(of, **more)


@pytest.fixture
async def deliverer() -> AsyncIterator[Deliverer]:
    async with Deliverer(SECRETS, LOOPBACK) as started:
        yield started


async def test_a_receiver_can_verify_what_it_gets(deliverer: Deliverer, receiver: Receiver, signals: Seen) -> None:
    orders = endpoint(receiver.url("/hook?shop=1"))
    delivered = await deliverer.deliver(orders, "1", DOCUMENT)
    assert delivered.status == 204
    (request,) = receiver.requests
    assert request.line == "POST /hook?shop=1 HTTP/1.1"
    assert request.body == DOCUMENT
    assert request.headers["content-type"] == "application/cloudevents+json"
    assert request.headers["user-agent"] == "Tenantry/0.1.0"
    assert request.headers["webhook-id"] == "acme_events_1"
    assert request.verify(SECRETS.current(orders)) == msgspec.json.decode(DOCUMENT)
    for other in (endpoint(orders.url), later(orders, secret_version=2)):
        with pytest.raises(WebhookVerificationError):
            request.verify(SECRETS.current(other))
    (told,) = [fields for name, fields in signals if name == "push.attempted"]
    assert (told["tenant"], told["endpoint"], told["event_id"], told["status"]) == ("acme", "orders", "1", 204)


async def test_after_a_rotation_both_secrets_verify_until_the_old_one_is_over(
    deliverer: Deliverer, receiver: Receiver
) -> None:
    old = endpoint(receiver.url())
    soon, past = datetime.now(UTC) + timedelta(hours=1), datetime.now(UTC)
    rotated = later(old, secret_version=2, previous_secret_until=soon)
    await deliverer.deliver(rotated, "1", DOCUMENT)
    await deliverer.deliver(later(rotated, previous_secret_until=past), "1", DOCUMENT)
    during, after = receiver.requests
    during.verify(SECRETS.current(old))
    during.verify(SECRETS.current(rotated))
    assert [each[:3] for each in during.headers["webhook-signature"].split(" ")] == ["v1,", "v1,"]
    after.verify(SECRETS.current(rotated))
    with pytest.raises(WebhookVerificationError):
        after.verify(SECRETS.current(old))


async def test_the_id_is_the_same_at_each_attempt_and_fits_into_a_header(
    deliverer: Deliverer, receiver: Receiver
) -> None:
    orders = endpoint(receiver.url())
    for id in ("a.b", "a.b", "ünïcode ✓", "a b", "x" * 256):
        await deliverer.deliver(orders, id, DOCUMENT)
    ids = [request.headers["webhook-id"] for request in receiver.requests]
    assert ids[0] == ids[1]
    assert len(set(ids)) == 4
    for request, id in zip(receiver.requests, ids, strict=True):
        assert id.isascii()
        assert "." not in id
        request.verify(SECRETS.current(orders))


def test_the_id_is_another_one_for_another_tenant_or_channel() -> None:
    here = endpoint("https://example.com")
    others = [later(here, tenant_id="globex"), later(here, channel="orders"), later(here, channel="events-1")]
    assert len({message_id(each, "1") for each in (here, *others)}) == 4
    assert message_id(here, "1") == message_id(later(here, id=uuid.uuid4(), name="other"), "1")


async def test_connections_are_used_again_and_cookies_are_not(deliverer: Deliverer, receiver: Receiver) -> None:
    receiver.answer = answering(200, b"thank you", Set_Cookie="who=acme")
    for id in ("1", "2", "3"):
        await deliverer.deliver(endpoint(receiver.url()), id, DOCUMENT)
    assert receiver.connections == 1
    assert not any("cookie" in request.headers for request in receiver.requests)


async def test_proxies_of_the_environment_are_not_used(receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "https_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    async with Deliverer(SECRETS, LOOPBACK) as deliverer:
        assert (await deliverer.deliver(endpoint(receiver.url()), "1", DOCUMENT)).status == 204


@pytest.mark.parametrize("status", [301, 302, 307, 308])
async def test_a_redirect_is_a_failure_and_is_not_followed(
    deliverer: Deliverer, receiver: Receiver, status: int
) -> None:
    receiver.answer = answering(status, Location=receiver.url("/elsewhere"))
    with pytest.raises(PushFailed, match=f"answered {status}, and redirects are not followed") as caught:
        await deliverer.deliver(endpoint(receiver.url()), "1", DOCUMENT)
    assert (caught.value.status, caught.value.retry_seconds) == (status, None)
    assert [request.line.split()[1] for request in receiver.requests] == ["/hook"]


@pytest.mark.parametrize("status", [400, 401, 404, 409, 500, 502])
async def test_a_failure_says_whose_and_what_was_answered(
    deliverer: Deliverer, receiver: Receiver, signals: Seen, status: int
) -> None:
    receiver.answer = answering(status, "no\0 room,\n  sorry ☹ ".encode() + b"\xff", Retry_After="60")
    with pytest.raises(PushFailed) as caught:
        await deliverer.deliver(endpoint(receiver.url("/hook?token=hidden")), "1", DOCUMENT)
    assert str(caught.value) == (f"endpoint orders of tenant acme: 127.0.0.1 answered {status}: no� room, sorry ☹ �")
    assert (caught.value.status, caught.value.retry_seconds) == (status, None)
    (told,) = [fields for name, fields in signals if name == "push.attempted"]
    assert told["status"] == status
    assert told["error"] is caught.value


async def test_gone_means_that_the_receiver_wants_no_more(deliverer: Deliverer, receiver: Receiver) -> None:
    receiver.answer = answering(410, b"we have moved")
    with pytest.raises(PushGone, match="answered 410: we have moved") as caught:
        await deliverer.deliver(endpoint(receiver.url()), "1", DOCUMENT)
    assert caught.value.status == 410


@pytest.mark.parametrize("status", [429, 503])
async def test_a_receiver_may_say_when_to_come_back(deliverer: Deliverer, receiver: Receiver, status: int) -> None:
    date = format_datetime(datetime.now(UTC) + timedelta(seconds=600), usegmt=True)
    past = format_datetime(datetime.now(UTC) - timedelta(days=1), usegmt=True)
    cases = {
        "120": (120, 120),
        "0": (0, 0),
        "999999": (3600, 3600),
        date: (500, 600),
        past: (0, 0),
        "soon": None,
        "-5": None,
        "": None,
        "9" * 5000: None,
    }
    for text, expected in cases.items():
        receiver.answer = answering(status, Retry_After=text)
        with pytest.raises(PushFailed) as caught:
            await deliverer.deliver(endpoint(receiver.url()), "1", DOCUMENT)
        wait = caught.value.retry_seconds
        if expected is None:
            assert wait is None, text
        else:
            assert wait is not None
            assert expected[0] <= wait <= expected[1], text


async def test_who_does_not_answer_in_time_has_failed(deliverer: Deliverer, receiver: Receiver) -> None:
    async def never(_: Request, __: asyncio.StreamWriter) -> None:
        await asyncio.Event().wait()

    receiver.answer = never
    with pytest.raises(PushFailed, match="did not answer within 1 seconds") as caught:
        await deliverer.deliver(endpoint(receiver.url(), timeout_seconds=1), "1", DOCUMENT)
    assert caught.value.status is None


async def test_an_answer_that_drips_is_cut_off(deliverer: Deliverer, receiver: Receiver) -> None:
    async def drip(_: Request, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 500 No\r\nContent-Length: 1000\r\n\r\nwell, ")
        await asyncio.Event().wait()

    receiver.answer = drip
    with pytest.raises(PushFailed, match="did not answer within 1 seconds"):
        await deliverer.deliver(endpoint(receiver.url(), timeout_seconds=1), "1", DOCUMENT)


async def test_a_success_counts_although_its_body_never_ends(deliverer: Deliverer, receiver: Receiver) -> None:
    async def drip(_: Request, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\nwell, ")
        await asyncio.Event().wait()

    receiver.answer = drip
    assert (await deliverer.deliver(endpoint(receiver.url()), "1", DOCUMENT)).status == 200


@pytest.mark.parametrize("status", [200, 500])
async def test_of_a_huge_answer_little_is_read(deliverer: Deliverer, receiver: Receiver, status: int) -> None:
    sent = 0

    async def flood(_: Request, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        writer.write(f"HTTP/1.1 {status} X\r\nContent-Encoding: gzip\r\nContent-Length: {1 << 40}\r\n\r\n".encode())
        while not writer.is_closing():
            writer.write(b"x" * 65536)
            await writer.drain()
            sent += 65536

    receiver.answer = flood
    orders = endpoint(receiver.url())
    if status == 200:
        assert (await deliverer.deliver(orders, "1", DOCUMENT)).status == 200
    else:
        with pytest.raises(PushFailed) as caught:
            await deliverer.deliver(orders, "1", DOCUMENT)
        assert str(caught.value).endswith(f"answered 500: {'x' * 200}…")
    assert LARGEST_ANSWER <= 65536
    assert sent < 1 << 30
    receiver.answer = answering(204)
    await deliverer.deliver(orders, "2", DOCUMENT)
    assert receiver.connections == 2


async def test_whatever_breaks_can_be_tried_again(deliverer: Deliverer, receiver: Receiver) -> None:
    async def garbage(_: Request, writer: asyncio.StreamWriter) -> None:
        writer.write(b"SSH-2.0-hello\r\n\r\n")
        writer.close()

    async def hang_up(_: Request, writer: asyncio.StreamWriter) -> None:
        writer.close()

    for answer in (garbage, hang_up):
        receiver.answer = answer
        with pytest.raises(PushFailed, match=r"broke off: .") as caught:
            await deliverer.deliver(endpoint(receiver.url()), "1", DOCUMENT)
        assert caught.value.status is None
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    with pytest.raises(PushFailed, match=r"127\.0\.0\.1 cannot be connected to: .*refused"):
        await deliverer.deliver(endpoint(f"http://127.0.0.1:{port}/"), "1", DOCUMENT)
    with pytest.raises(PushFailed, match=r"nothing\.invalid is not known to the name servers"):
        await deliverer.deliver(endpoint("https://nothing.invalid/"), "1", DOCUMENT)


async def test_what_is_not_text_cannot_be_signed(deliverer: Deliverer, receiver: Receiver) -> None:
    with pytest.raises(EventInvalid, match="expected UTF-8"):
        await deliverer.deliver(endpoint(receiver.url()), "1", b"\xff")
    assert receiver.requests == []


async def test_a_ping_is_an_event_like_any_other(deliverer: Deliverer, receiver: Receiver) -> None:
    orders = endpoint(receiver.url())
    await deliverer.ping(orders)
    event = receiver.requests[0].verify(SECRETS.current(orders))
    assert isinstance(event, dict)
    assert (event["type"], event["tenantid"], event["data"]) == ("tenantry.ping", "acme", {"endpoint": "orders"})


@settings(max_examples=60)
@given(
    start=st.sampled_from([b"", b"HTTP/1.1 ", b"HTTP/1.1 200 OK\r\n", b"HTTP/1.1 503 No\r\nRetry-After: "]),
    rest=st.binary(max_size=200),
)
def test_whatever_is_answered_the_event_is_delivered_or_it_is_not(start: bytes, rest: bytes) -> None:
    async def answer(_: Request, writer: asyncio.StreamWriter) -> None:
        writer.write(start + rest)
        writer.close()

    async def deliver() -> None:
        async with receiving() as receiver, Deliverer(SECRETS, LOOPBACK) as deliverer:
            receiver.answer = answer
            with suppress(PushFailed, PushGone):
                assert (await deliverer.deliver(endpoint(receiver.url()), "1", DOCUMENT)).status // 100 == 2

    asyncio.run(deliver())


@given(st.text(max_size=60) | st.datetimes().map(format_datetime) | st.from_regex(r"Mon, 0?[0-9]+ Jan [0-9]+ 0:0:0 .*"))
def test_no_wait_that_a_receiver_asks_for_is_longer_than_an_hour(text: str) -> None:
    wait = read_wait(text)
    assert wait is None or 0 <= wait <= 3600


async def test_a_tenant_whose_names_resolve_slowly_holds_up_nobody_else(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    look_up, answered, asked = socket.getaddrinfo, threading.Event(), set()

    def slow(host: str, *rest: Any) -> Any:
        if host.endswith(".slow.invalid"):
            asked.add(host)
            answered.wait()
            raise socket.gaierror("no answer")
        return look_up(host, *rest)

    monkeypatch.setattr(socket, "getaddrinfo", slow)
    async with Deliverer(SECRETS, LOOPBACK) as deliverer:
        hosts = [f"http://{number}.slow.invalid/" for number in range(2 * LOOKUPS)]
        stuck = [asyncio.ensure_future(deliverer.deliver(endpoint(url), "1", DOCUMENT)) for url in hosts]
        try:
            await asyncio.to_thread(wait_for, lambda: len(asked) >= min(LOOKUPS, LOOKUPS_OF_TENANT))
            other = endpoint(receiver.url(host="localhost"), tenant_id="globex")
            assert (await deliverer.deliver(other, "1", DOCUMENT)).status == 204
            # Who gives up leaves its thread as busy as it was.
            await end(stuck[:LOOKUPS_OF_TENANT])
            assert (await deliverer.deliver(other, "2", DOCUMENT)).status == 204
            assert len(asked) <= LOOKUPS_OF_TENANT
        finally:
            answered.set()
        outcomes = await asyncio.gather(*stuck[LOOKUPS_OF_TENANT:], return_exceptions=True)
        assert all(isinstance(each, PushFailed) for each in outcomes)


# Addresses, at the moment of connecting


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "127.1", "2130706433", "0x7f.1", "[::ffff:127.0.0.1]"])
async def test_what_leads_to_this_machine_is_refused_however_it_is_spelt(receiver: Receiver, host: str) -> None:
    async with Deliverer(SECRETS, AddressGuard()) as deliverer:
        for scheme in ("http", "https"):
            with pytest.raises(PushFailed):
                await deliverer.deliver(endpoint(f"{scheme}://{host}:{receiver.port}/"), "1", DOCUMENT)
    assert receiver.connections == 0


async def test_a_name_that_resolves_to_this_machine_is_refused_and_its_address_not_told(receiver: Receiver) -> None:
    async with Deliverer(SECRETS, AddressGuard()) as deliverer:
        with pytest.raises(PushFailed, match="localhost does not lead to a public address") as caught:
            await deliverer.deliver(endpoint(f"https://localhost:{receiver.port}/"), "1", DOCUMENT)
    assert "127.0.0.1" not in str(caught.value)
    assert "::1" not in str(caught.value)
    assert receiver.connections == 0


async def test_a_name_that_resolves_to_an_allowed_network_is_reached(deliverer: Deliverer, receiver: Receiver) -> None:
    assert (await deliverer.deliver(endpoint(receiver.url(host="localhost")), "1", DOCUMENT)).status == 204


async def test_certificates_are_verified() -> None:
    authority = trustme.CA()
    serving = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("localhost").configure_cert(serving)
    trusting = ssl.create_default_context()
    authority.configure_trust(trusting)
    async with receiving(serving) as receiver:
        async with Deliverer(SECRETS, LOOPBACK, tls=trusting) as deliverer:
            assert (await deliverer.deliver(endpoint(receiver.url(host="localhost")), "1", DOCUMENT)).status == 204
            with pytest.raises(PushFailed, match=r"127\.0\.0\.1 has a certificate that is not valid"):
                await deliverer.deliver(endpoint(receiver.url()), "1", DOCUMENT)
        async with Deliverer(SECRETS, LOOPBACK) as strict:
            with pytest.raises(PushFailed, match="localhost has a certificate that is not valid"):
                await strict.deliver(endpoint(receiver.url(host="localhost")), "1", DOCUMENT)
        assert len(receiver.requests) == 1
