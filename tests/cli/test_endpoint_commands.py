"""`tenantry endpoint`, against a platform that runs and a receiver that answers."""

from __future__ import annotations

import asyncio

import pytest
from standardwebhooks.webhooks import WebhookVerificationError

from tests.cli.conftest import Platform
from tests.subscriptions.receiver import answering, receiving

pytestmark = pytest.mark.xdist_group("event commands")

ALLOWED = ("--push-allowed-networks", "127.0.0.0/8")


async def test_an_endpoint_is_made_tested_rotated_and_deleted(running: Platform) -> None:
    run, ask = running.run, running.json

    async with receiving() as receiver:
        url = receiver.url()
        made = await asyncio.to_thread(
            ask, "endpoint", "create", "acme", "orders", url, "--type", "order.*", "--order", "fifo", *ALLOWED
        )
        assert (made["types"], made["order"], made["url"]) == (["order.*"], "fifo", url)
        assert "delivered: 204" in await asyncio.to_thread(run, "endpoint", "test", "acme", "orders", *ALLOWED)
        (request,) = receiver.requests
        event = request.verify(made["secret"])
        assert isinstance(event, dict)
        assert (event["type"], event["tenantid"]) == ("tenantry.ping", "acme")

        new = (await asyncio.to_thread(run, "endpoint", "rotate", "acme", "orders", "--overlap", "0")).strip()
        assert new == (await asyncio.to_thread(run, "endpoint", "secret", "acme", "orders")).strip() != made["secret"]
        tested = await asyncio.to_thread(ask, "endpoint", "test", "acme", "orders", *ALLOWED)
        assert (tested["outcome"], tested["status"]) == ("delivered", 204)
        receiver.requests[1].verify(new)
        with pytest.raises(WebhookVerificationError):
            receiver.requests[1].verify(made["secret"])

        receiver.answer = answering(500, b"not today")
        said = await asyncio.to_thread(run, "endpoint", "test", "acme", "orders", *ALLOWED, status=1)
        assert "endpoint orders of tenant acme: 127.0.0.1 answered 500: not today" in said
        # Without the network being allowed, nothing is delivered to what was made when it was.
        said = await asyncio.to_thread(run, "endpoint", "test", "acme", "orders", status=1)
        assert "does not lead to a public address" in said
        assert len(receiver.requests) == 3

    def rest() -> None:
        changed = ask("endpoint", "set", "acme", "orders", "--retries", "3", "--timeout", "5")
        assert (changed["retries"], changed["timeout_seconds"], changed["types"]) == (3, 5, ["order.*"])
        assert "is disabled" in run("endpoint", "disable", "acme", "orders", "--reason", "a rest")
        assert "disabled: a rest" in run("endpoint", "show", "acme", "orders")
        assert "is active" in run("endpoint", "enable", "acme", "orders")
        assert url in run("endpoint", "list", "acme")
        assert "is deleted" in run("endpoint", "delete", "acme", "orders")
        assert "acme has no endpoints yet" in run("endpoint", "list", "acme")

    await asyncio.to_thread(rest)


def test_a_private_address_is_refused_with_what_to_do(running: Platform) -> None:
    said = running.run("endpoint", "create", "acme", "inner", "https://10.0.0.1/", status=1)
    assert "expected url to lead to a public address" in said
    assert "push_allowed_networks" in said
