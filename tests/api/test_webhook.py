"""The provisioning webhook: signed, once each, and safe to repeat."""

from __future__ import annotations

import asyncio
import base64
import json
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest
from standardwebhooks.webhooks import Webhook

from tenantry.api.deliveries import REMEMBERED
from tenantry.api.hooks import ProvisioningHook
from tenantry.errors import ConfigError
from tenantry.tenants.audit import AuditEntry
from tenantry.tenants.spec import TenantSpec
from tests.api.conftest import Api, StartApi

SECRET = "whsec_" + base64.b64encode(b"0123456789abcdef0123456789abcdef").decode()
PATH = "/v1/hooks/provisioning"


class Sender:
    """An account system."""

    def __init__(self, api: Api, client: httpx.AsyncClient) -> None:
        self.api = api
        self._client = client
        self._sent = 0

    async def send(self, type: str, delivery: str = "", **data: Any) -> httpx.Response:
        """Something about the account acme, as a new delivery or under the id of an earlier one."""
        self._sent += 1
        document = {"type": f"account.{type}", "timestamp": "2020-01-01T00:00:00Z", "data": {"id": "acme"} | data}
        return await self.deliver(json.dumps(document), delivery or f"msg_{self._sent}")

    async def deliver(
        self,
        body: str,
        id: str = "msg",
        *,
        secret: str = SECRET,
        age: timedelta = timedelta(),
        sent_body: str | bytes | None = None,
        **headers: str,
    ) -> httpx.Response:
        moment = datetime.now(UTC) - age
        signed = {
            "webhook-id": id,
            "webhook-timestamp": str(int(moment.timestamp())),
            "webhook-signature": Webhook(secret).sign(id, moment, body),
            "content-type": "application/json",
        }
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return await self._client.post(PATH, content=body if sent_body is None else sent_body, headers=signed | named)

    async def acts(self) -> list[AuditEntry]:
        """What was done so far, the oldest first."""
        return (await self.api.administration.audit.newest())[::-1]


@pytest.fixture
async def sender(start_api: StartApi) -> Sender:
    api = await start_api(webhook_secret=SECRET)
    return Sender(api, await api.anybody())


async def test_an_account_is_followed_from_its_creation_to_its_end(sender: Sender) -> None:
    registry = sender.api.administration.registry
    created = await sender.send("created", name="Acme", plan="free", tier="stream")
    assert (created.status_code, created.json()) == (200, {"status": "handled"})
    assert (await registry.get("acme")).plan == "free"
    await sender.send("updated", overrides={"publish_rate": 9}, channels={"clicks": "1d"})
    tenant = await registry.get("acme")
    assert tenant.limits.publish_rate == 9
    assert tenant.channel("clicks")
    await sender.send("suspended")
    assert (await registry.get("acme")).status == "suspended"
    await sender.send("created", name="Acme Inc.")
    assert ((await registry.get("acme")).status, (await registry.get("acme")).name) == ("suspended", "Acme Inc.")
    await sender.send("resumed")
    assert (await registry.get("acme")).status == "active"
    assert (await sender.send("deleted")).json() == {"status": "handled"}
    assert await registry.find("acme") is None
    assert (await sender.send("deleted")).json() == {"status": "handled"}
    assert {each.actor for each in await sender.acts()} == {"webhook", "reconciler"}


async def test_a_repeated_delivery_changes_nothing(sender: Sender) -> None:
    assert (await sender.send("created", "msg_1")).json() == {"status": "handled"}
    await sender.api.administration.delete("acme", "test")
    before = await sender.acts()
    assert (await sender.send("created", "msg_1")).json() == {"status": "duplicate"}
    assert await sender.acts() == before
    assert await sender.api.administration.registry.find("acme") is None


async def test_of_deliveries_side_by_side_one_acts(sender: Sender) -> None:
    body = json.dumps({"type": "account.created", "data": {"id": "acme"}})
    answers = await asyncio.gather(*(sender.deliver(body, "msg_1") for _ in range(12)))
    outcomes = sorted(each.json()["status"] for each in answers)
    assert outcomes == ["duplicate"] * 11 + ["handled"]
    assert [each.act for each in await sender.acts()] == ["tenant.create"]


async def test_many_deliveries_at_once_do_not_starve_each_other(sender: Sender) -> None:
    """More than there are connections in the pool, each of which needs one for its work."""
    bodies = [json.dumps({"type": "account.created", "data": {"id": f"t{number}"}}) for number in range(15)]
    answers = await asyncio.gather(*(sender.deliver(body, f"msg_{body}") for body in bodies))
    assert {each.status_code for each in answers} == {200}
    assert len(await sender.api.administration.registry.page()) == 15


async def test_a_delivery_that_failed_can_be_sent_again(sender: Sender) -> None:
    assert (await sender.send("updated", "msg_1", name="Acme")).status_code == 404
    assert (await sender.send("suspended", "msg_2")).status_code == 404
    assert (await sender.send("created", "msg_3", plan="none")).status_code == 422
    await sender.api.administration.put(TenantSpec(id="acme"), "test")
    assert (await sender.send("updated", "msg_1", name="Acme")).json() == {"status": "handled"}
    assert (await sender.send("suspended", "msg_2")).json() == {"status": "handled"}
    assert (await sender.send("created", "msg_3", plan="free")).json() == {"status": "handled"}


async def test_a_late_update_does_not_bring_a_deleted_tenant_back(sender: Sender) -> None:
    await sender.send("created")
    await sender.send("deleted")
    assert (await sender.send("updated", name="Acme")).status_code == 404
    assert await sender.api.administration.registry.find("acme") is None


async def test_what_happened_before_the_newest_that_was_heard_changes_nothing(sender: Sender) -> None:
    async def tell(kind: str, minute: int, tenant: str = "acme") -> str:
        moment = f"2020-01-01T00:{minute:02}:00Z"
        body = {"type": f"account.{kind}", "timestamp": moment, "data": {"id": tenant}}
        answer = await sender.deliver(json.dumps(body), f"msg_{kind}_{minute}_{tenant}")
        return str(answer.json()["status"])

    registry = sender.api.administration.registry
    assert await tell("created", 1) == "handled"
    assert await tell("suspended", 3) == "handled"
    assert await tell("resumed", 2) == "outdated"
    assert (await registry.get("acme")).status == "suspended"
    assert await tell("created", 2, "globex") == "handled"
    assert await tell("deleted", 9) == "handled"
    assert await tell("created", 8) == "outdated"
    assert await registry.find("acme") is None
    assert await tell("created", 10) == "handled"
    assert (await registry.get("acme")).status == "active"
    # What is said to happen in the future would make all that really happens outdated.
    body = {"type": "account.suspended", "timestamp": "2130-01-01T00:00:00Z", "data": {"id": "acme"}}
    assert (await sender.deliver(json.dumps(body))).status_code == 422
    assert (await registry.get("acme")).status == "active"


async def test_what_the_servers_do_not_have_yet_is_accepted_and_not_repeated(sender: Sender) -> None:
    platform = sender.api.administration.backbone.platform
    await platform.create_stream({"name": "TENANT_ACME_EVENTS", "subjects": ["elsewhere"]})
    created = await sender.send("created", "msg_1")
    assert (created.status_code, created.json()) == (202, {"status": "handled"})
    deleted = await sender.send("deleted", "msg_2")
    assert (deleted.status_code, deleted.json()) == (202, {"status": "handled"})
    assert (await sender.send("deleted", "msg_2")).json() == {"status": "duplicate"}


FORGERIES: tuple[dict[str, Any], ...] = (
    {"secret": "whsec_" + base64.b64encode(b"f" * 32).decode()},
    {"sent_body": '{"type": "account.deleted", "data": {"id": "acme"}}'},
    {"sent_body": ""},
    {"sent_body": b"\xff"},
    {"age": timedelta(minutes=6)},
    {"age": -timedelta(minutes=6)},
    {"webhook_id": "another"},
    {"webhook_id": ""},
    {"webhook_timestamp": "nan"},
    {"webhook_timestamp": "1"},
    {"webhook_timestamp": ""},
    {"webhook_signature": ""},
    {"webhook_signature": "v1"},
    {"webhook_signature": "v1,"},
    {"webhook_signature": "v1,!!!"},
    {"webhook_signature": "v1a,AAAA v2,AAAA"},
    {"webhook_signature": "v1,a,b"},
)


async def test_a_forged_delivery_is_refused_without_a_reason(sender: Sender) -> None:
    for forgery in FORGERIES:
        refused = await sender.deliver('{"type": "account.created", "data": {"id": "acme"}}', **forgery)
        assert refused.status_code == 401, forgery
        assert refused.json()["detail"] == "the delivery is not signed as it should be"
    assert await sender.acts() == []


async def test_a_delivery_cannot_be_replayed_under_a_second_id(sender: Sender) -> None:
    body, moment = '{"type": "account.created", "data": {"id": "acme"}}', datetime.now(UTC)
    signed = [
        ("webhook-timestamp", str(int(moment.timestamp()))),
        ("webhook-signature", Webhook(SECRET).sign("msg_1", moment, body)),
    ]
    client = await sender.api.anybody()
    for ids in (["other", "msg_1"], ["msg_1", "other"]):
        await client.post(PATH, content=body, headers=[*(("webhook-id", id) for id in ids), *signed])
    async with sender.api.administration.pool.connection() as connection:
        rows = await connection.execute("select id from tenantry.webhook_deliveries")
        assert {id for (id,) in await rows.fetchall()} <= {"msg_1"}


async def test_an_unsigned_delivery_is_refused(sender: Sender) -> None:
    refused = await (await sender.api.anybody()).post(PATH, json={"type": "account.deleted", "data": {"id": "acme"}})
    assert refused.status_code == 401


async def test_an_api_key_does_not_replace_the_signature(sender: Sender) -> None:
    admin = await sender.api.client("*")
    assert (await admin.post(PATH, json={"type": "account.created", "data": {"id": "acme"}})).status_code == 401


async def test_a_signed_delivery_that_makes_no_sense_is_a_problem(sender: Sender) -> None:
    for body, status in (
        ("nonsense", 400),
        ("[" * 100_000, 400),
        ("[]", 422),
        ("{}", 422),
        ('{"type": 7, "data": {"id": "acme"}}', 422),
        ('{"type": "account.created"}', 422),
        ('{"type": "account.created", "data": {"id": "Not An Id"}}', 422),
        ('{"type": "account.created", "data": {"id": "acme", "name": "\\u0000"}}', 422),
        ('{"type": "account.created", "data": {"id": "acme", "placement": {"lake": "\\u0000"}}}', 422),
    ):
        refused = await sender.deliver(body)
        assert (refused.status_code, refused.headers["content-type"]) == (status, "application/problem+json"), body
    assert await sender.acts() == []


async def test_what_is_of_no_concern_is_ignored(sender: Sender) -> None:
    ignored = await sender.deliver('{"type": "invoice.paid", "data": {"amount": 7}}')
    assert (ignored.status_code, ignored.json()) == (200, {"status": "ignored"})
    extra = await sender.send("created", email="ann@example.org")
    assert extra.json() == {"status": "handled"}


async def test_deliveries_are_forgotten_in_the_end(sender: Sender) -> None:
    await sender.send("created", "old")
    await sender.send("created", "recent")
    async with sender.api.administration.pool.connection() as connection:
        await connection.execute(
            "update tenantry.webhook_deliveries set received_at = now() - %s::interval where id = 'old'", [REMEMBERED]
        )
        await sender.send("created", "new")
        rows = await connection.execute("select id from tenantry.webhook_deliveries order by id")
        assert [id for (id,) in await rows.fetchall()] == ["new", "recent"]


async def test_without_a_secret_there_is_no_webhook(api: Api) -> None:
    answer = await Sender(api, await api.anybody()).send("created")
    assert (answer.status_code, "webhook_secret" in answer.json()["detail"]) == (404, True)


@pytest.mark.parametrize("secret", ["", "whsec_", "whsec_c2hvcnQ=", "whsec_ü", "whsec_" + "!" * 40])
def test_a_secret_that_is_none_is_refused(secret: str) -> None:
    with pytest.raises(ConfigError, match="webhook_secret"):
        ProvisioningHook(secret, None)  # type: ignore[arg-type]
