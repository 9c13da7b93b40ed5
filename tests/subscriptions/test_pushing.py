"""Workers deliver to endpoints: signed, tried again, and each endpoint by itself."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest

from tenantry.application import Tenantry
from tenantry.subscriptions import pushing
from tenantry.subscriptions.push_delivery import Deliverer
from tenantry.subscriptions.push_endpoint import PushSpec, State
from tenantry.subscriptions.push_endpoints import PushEndpoints
from tenantry.subscriptions.push_secrets import PushSecrets
from tests.subscriptions.receiver import LOOPBACK, Receiver, answering, receiving
from tests.subscriptions.working import Working, document, until


class Pushed:
    def __init__(self, working: Working) -> None:
        administration = working.administration
        self.working = working
        self.secrets = PushSecrets(administration.keyring)
        self.endpoints = PushEndpoints(administration.pool, administration.registry, administration.audit, LOOPBACK)

    async def endpoint(self, tenant: str, receiver: Receiver, name: str = "hook", **spec: Any) -> Any:
        return await self.endpoints.create(tenant, name, PushSpec(url=receiver.url(), **spec), "test")

    @asynccontextmanager
    async def worker(self, **options: Any) -> AsyncIterator[Any]:
        deliverer = Deliverer(self.secrets, LOOPBACK)
        async with self.working.worker(
            Tenantry("nothing"), push=lambda: (self.endpoints, deliverer), **options
        ) as worker:
            yield worker


@pytest.fixture
def pushed(working: Working, monkeypatch: pytest.MonkeyPatch) -> Pushed:
    monkeypatch.setattr(pushing, "PAUSES", (0.05,))
    return Pushed(working)


def numbers(receiver: Receiver) -> list[int]:
    return [msgspec.json.decode(request.body)["data"] for request in receiver.requests]


@pytest.mark.parametrize("order", ["fifo", "parallel"])
async def test_events_are_delivered_to_the_tenants_own_endpoint_signed(
    pushed: Pushed, working: Working, receiver: Receiver, order: Any
) -> None:
    await working.tenant("acme")
    await working.tenant("globex")
    await working.publish("acme", 3)
    endpoint = await pushed.endpoint("acme", receiver, order=order, types=("order.*",))
    async with pushed.worker():
        await working.publish("acme", 10)
        await working.publish("acme", 1, type="invoice.paid")
        await working.publish("globex", 5)
        await until(lambda: len(receiver.requests) == 10)
    # What came before the endpoint was made is not for it.
    assert sorted(numbers(receiver)) == list(range(4, 14))
    if order == "fifo":
        assert numbers(receiver) == list(range(4, 14))
    secret = pushed.secrets.current(endpoint)
    for request in receiver.requests:
        request.verify(secret)


async def test_what_fails_is_tried_again_with_the_same_id_and_in_order(
    pushed: Pushed, working: Working, receiver: Receiver
) -> None:
    await working.tenant("acme")
    await pushed.endpoint("acme", receiver, order="fifo")
    failing = iter([500, 503])

    async def answer(request: Any, writer: Any) -> None:
        await answering(next(failing, 200))(request, writer)

    receiver.answer = answer
    async with pushed.worker():
        await working.publish("acme", 3)
        await until(lambda: len(receiver.requests) == 5)
    assert numbers(receiver) == [1, 1, 1, 2, 3]
    assert len({request.headers["webhook-id"] for request in receiver.requests[:3]}) == 1


async def test_an_endpoint_that_is_gone_is_disabled_and_goes_on_when_it_is_enabled(
    pushed: Pushed, working: Working, receiver: Receiver
) -> None:
    await working.tenant("acme")
    await pushed.endpoint("acme", receiver, order="fifo")
    receiver.answer = answering(410)
    async with pushed.worker() as worker:
        await working.publish("acme", 3)

        async def disabled() -> bool:
            return (await pushed.endpoints.get("acme", "hook")).state == State.DISABLED

        await until(disabled)
        await until(lambda: not worker.holdings)
        receiver.requests.clear()
        receiver.answer = answering(200)
        await pushed.endpoints.enable("acme", "hook", "test")
        await until(lambda: len(receiver.requests) == 3)
    assert numbers(receiver) == [1, 2, 3]


async def test_after_the_last_retry_it_is_a_dead_letter(pushed: Pushed, working: Working, receiver: Receiver) -> None:
    await working.tenant("acme")
    endpoint = await pushed.endpoint("acme", receiver, retries=1)
    receiver.answer = answering(500, b"out of order")
    async with pushed.worker():
        await working.publish("acme", 1)

        async def buried() -> bool:
            return bool(await working.rows("select 1 from tenantry.dead_letters"))

        await until(buried)
    ((service, reason, deliveries),) = await working.rows(
        "select service, reason, deliveries from tenantry.dead_letters"
    )
    assert (service, deliveries) == (pushing.service_of(endpoint), 2)
    assert "500" in reason
    assert len(receiver.requests) == 2


async def test_an_endpoint_that_keeps_failing_rests_and_another_does_not_notice(
    pushed: Pushed, working: Working, receiver: Receiver
) -> None:
    await working.tenant("acme")
    async with receiving() as other:
        await pushed.endpoint("acme", receiver, "broken", max_in_flight=1)
        await pushed.endpoint("acme", other, "whole")
        receiver.answer = answering(500)
        async with pushed.worker():
            await working.publish("acme", 40)
            await until(lambda: len(other.requests) == 40)
            await until(lambda: len(receiver.requests) == 5)
            # The breaker is open for seconds now; nothing is tried, and no retry is used up.
            await working.publish("acme", 10)
            await until(lambda: len(other.requests) == 50)
            assert len(receiver.requests) == 5
    assert await working.rows("select 1 from tenantry.dead_letters") == []


async def test_endpoints_are_spread_over_workers_and_survive_one(
    pushed: Pushed, working: Working, receiver: Receiver
) -> None:
    names = await working.tenants(8)
    for name in names:
        await pushed.endpoint(name, receiver, order="fifo")
    async with pushed.worker(id="one") as one:
        async with pushed.worker(id="two") as two:
            await until(lambda: len(one.holdings) + len(two.holdings) == 8 and bool(one.holdings and two.holdings))
        await until(lambda: len(one.holdings) == 8)
        await asyncio.gather(*(working.publish(name, 2) for name in names))
        await until(lambda: len(receiver.requests) == 16)


async def test_an_event_that_claims_to_be_anothers_is_delivered_as_its_tenants(
    pushed: Pushed, working: Working, receiver: Receiver
) -> None:
    await working.tenant("acme")
    await pushed.endpoint("acme", receiver)
    async with pushed.worker():
        await working.publish_documents("acme", [document("acme", 1, tenantid="globex", tenant="globex")])
        await until(lambda: len(receiver.requests) == 1)
    event = msgspec.json.decode(receiver.requests[0].body)
    assert event["tenantid"] == "acme"
    assert "tenant" not in event
