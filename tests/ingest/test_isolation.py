"""What one tenant does, or suffers, is nobody else's concern."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import httpx
import pytest
from nats.aio.msg import Msg

from tenantry.api.app import build_app
from tenantry.api.server import ApiServer
from tenantry.config import Settings
from tenantry.ingest import admission
from tenantry.nats.connections import connect
from tenantry.tenants.administration import Administration
from tenantry.tenants.roster import Roster
from tenantry.tenants.spec import TenantSpec
from tests.api.conftest import Api
from tests.ingest.conftest import STRUCTURED, Sender, event, make_sender
from tests.ingest.outage import until


@asynccontextmanager
async def silent(sender: Sender) -> AsyncIterator[None]:
    """Somebody listens in place of the tenant's stream, and never answers."""
    lane = await sender.lane()
    async with connect(lane.broker, "test") as client:
        await client.jetstream().delete_stream(lane.stream)
        await client.subscribe(lane.subjects, cb=_ignore)
        await client.flush()
        yield


async def _ignore(_: Msg) -> None:
    pass


@pytest.mark.parametrize("tier", ["stream", "account"])
async def test_a_stream_that_does_not_answer_holds_up_nobody_else(api: Api, tier: str) -> None:
    acme, globex = await make_sender(api, tier=tier), await make_sender(api, "globex")
    await globex.send(event("warm"))
    async with silent(acme):
        stuck = [asyncio.ensure_future(acme.send(event(str(number)))) for number in range(10)]
        for number in range(100):
            answer = await globex.send(event(str(number)))
            assert answer.json()["spooled"] == 0
        assert not any(each.done() for each in stuck)
        answers = await asyncio.gather(*stuck)
    assert [(each.status_code, each.json()["spooled"]) for each in answers] == [(202, 1)] * 10


async def test_what_waits_of_one_tenant_is_bounded_and_leaves_room_for_others(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admission, "MOST_EVENTS_OF_TENANT", 5)
    acme, globex = await make_sender(api), await make_sender(api, "globex")
    async with silent(acme):
        answers = await asyncio.gather(*(acme.send(event(str(number))) for number in range(8)), globex.send(event("1")))
    *of_acme, of_globex = [each.status_code for each in answers]
    assert (sorted(of_acme), of_globex) == ([202] * 5 + [429] * 3, 202)
    refused = [each for each in answers if each.status_code == 429]
    assert all(int(each.headers["Retry-After"]) >= 1 for each in refused)
    assert (await acme.send(event("later"))).status_code == 202


async def test_when_all_room_is_taken_others_are_asked_to_come_again(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admission, "MOST_BYTES", 300)
    acme = await make_sender(api)
    answer = await acme.send(event("1", data="x" * 400))
    assert (answer.status_code, answer.headers["Retry-After"]) == (503, "5")
    assert (await acme.send(event("1"))).status_code == 202


async def test_a_foreign_tenant_is_not_there(api: Api, acme: Sender) -> None:
    await make_sender(api, "globex")
    answers = [
        await acme.client.post(f"/v1/tenants/{name}/events", json=event("1"), headers={"Content-Type": STRUCTURED})
        for name in ("globex", "nobody")
    ]
    assert [each.status_code for each in answers] == [404, 404]
    assert answers[0].text.replace("globex", "nobody") == answers[1].text


async def test_a_missing_scope_is_a_403_and_a_missing_key_a_401(api: Api, acme: Sender) -> None:
    reader = await api.client("tenants:read", tenant="acme")
    headers = {"Content-Type": STRUCTURED}
    assert (await reader.post("/v1/events", json=event("1"), headers=headers)).status_code == 403
    anybody = await api.anybody()
    refused = await anybody.post("/v1/events", json=event("1"), headers=headers)
    assert (refused.status_code, refused.headers["WWW-Authenticate"]) == (401, 'Bearer realm="tenantry"')
    assert await acme.stored() == []


async def test_a_revoked_key_is_refused_within_a_moment(api: Api, acme: Sender) -> None:
    key, text = await api.keys.create("test", name="x", scopes=["events:write"], tenant="acme")
    sender = Sender(api, await api.bearer(text), "acme")
    assert (await sender.send(event("1"))).status_code == 202
    await api.keys.revoke(key.id, "test")
    async with asyncio.timeout(2):
        while (answer := await sender.send(event("1"))).status_code != 401:
            assert answer.status_code == 202


async def test_a_suspended_tenant_sends_nothing_until_it_is_resumed(api: Api, acme: Sender) -> None:
    await api.administration.suspend("acme", "test")
    await _until_status(acme, 409)
    await api.administration.resume("acme", "test")
    await _until_status(acme, 202)
    await api.administration.delete("acme", "test")
    await _until_status(acme, 401)


async def _until_status(sender: Sender, status: int) -> None:
    async with asyncio.timeout(10):
        while (await sender.send(event("1"))).status_code != status:
            await asyncio.sleep(0.02)


async def test_a_tenant_that_was_just_made_can_send_at_once(api: Api) -> None:
    operator = await api.client("events:write")
    for number in range(5):
        await api.administration.put(TenantSpec(id=f"new-{number}"), "test")
        path = f"/v1/tenants/new-{number}/events"
        answer = await operator.post(path, json=event("1"), headers={"Content-Type": STRUCTURED})
        assert answer.status_code == 202, answer.text


async def test_the_rate_of_the_plan_is_kept(api: Api) -> None:
    acme = await make_sender(api, overrides={"publish_rate": 1, "publish_burst": 5})
    globex = await make_sender(api, "globex")
    assert (await acme.send([event(str(number)) for number in range(5)])).status_code == 202
    answer = await acme.send(event("6"))
    assert (answer.status_code, answer.json()["type"]) == (429, "urn:tenantry:problem:too-much")
    assert int(answer.headers["Retry-After"]) >= 1
    assert (await globex.send(event("1"))).status_code == 202
    await api.administration.put(TenantSpec(id="acme", overrides={"publish_rate": 100000}), "test")
    await _until_status(acme, 202)


async def test_a_little_too_much_waits_a_little(api: Api) -> None:
    acme = await make_sender(api, overrides={"publish_rate": 100, "publish_burst": 1})
    answers = [await acme.send(event(str(number))) for number in range(10)]
    assert [each.status_code for each in answers] == [202] * 10


async def test_a_channel_that_is_full_and_keeps_what_it_has_says_so(api: Api) -> None:
    acme = await make_sender(api, overrides={"messages": 3, "discard": "new"})
    assert (await acme.send([event(str(number)) for number in range(3)])).status_code == 202
    for document in (event("4"), [event("0"), event("5")]):
        answer = await acme.send(document)
        assert (answer.status_code, answer.json()["type"]) == (429, "urn:tenantry:problem:storage-full")
        assert int(answer.headers["Retry-After"]) >= 1
    assert len(await acme.stored()) == 3


async def test_events_follow_a_tenant_that_moves(api: Api) -> None:
    """Sent one after the other during the whole move, each is answered, and stored once and in order."""
    acme = await make_sender(api, tier="pooled")
    moving = asyncio.ensure_future(_move(api))
    sent: list[tuple[str, httpx.Response]] = []
    while not moving.done() or len(sent) < 50:
        id = str(len(sent))
        sent.append((id, await acme.send(event(id))))
    await moving
    assert {answer.status_code for _, answer in sent} == {202}
    lane = await acme.lane()
    assert lane.account != api.administration.lanes.platform_account
    spooled = {id for id, answer in sent if answer.json()["spooled"]}
    expected = [f"acme/{id}" for id, _ in sent if id not in spooled]
    assert [each.headers["Nats-Msg-Id"] for each in await acme.stored() if _id(each) not in spooled] == expected


def _id(message: Any) -> str:
    return str(message.headers["Nats-Msg-Id"]).partition("/")[2]


async def _move(api: Api) -> None:
    for tier in ("stream", "account"):
        await api.administration.move("acme", tier, "test")


async def test_an_event_for_where_its_tenant_was_goes_to_where_it_is(administration: Administration) -> None:
    """A process that has not heard of a move publishes to the old lane, where nobody is."""
    roster, settings = Roster(administration.registry, administration.lanes), Settings()
    app = build_app(administration, keys=administration.keys, tokens=None, settings=settings, roster=roster)
    server = ApiServer(app, settings.api_host, 0)
    await server.start()
    async with AsyncExitStack() as stack:
        stack.push_async_callback(server.stop)
        acme = await make_sender(Api(administration, administration.keys, server, stack))
        assert (await acme.send(event("1"))).status_code == 202
        before = roster.lane("acme", "events")
        await administration.move("acme", "account", "test")
        assert roster.lane("acme", "events") == before
        answer = await acme.send([event("2"), event("3")])
        assert answer.json()["spooled"] == 0
        assert [_id(each) for each in await acme.stored()] == ["1", "2", "3"]


async def test_a_connection_for_a_tenant_is_closed_when_it_is_idle(api: Api) -> None:
    acme = await make_sender(api, tier="account")
    front: Any = api.server._server.config.loaded_app
    publishers = front._events._intake().publishers
    assert (await acme.send(event("1"))).status_code == 202
    assert len(publishers) == 2
    for publisher in publishers._open.values():
        publisher.used_at = -1e9
    await until(lambda: len(publishers) == 1)
    assert (await acme.send(event("2"))).json()["spooled"] == 0
