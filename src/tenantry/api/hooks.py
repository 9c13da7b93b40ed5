"""The provisioning webhook: an account system tells of its accounts, and tenants follow (Standard Webhooks)."""

from __future__ import annotations

import binascii
import json
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Final

from fastapi import APIRouter, Header, Request, Response
from fastapi.exceptions import RequestValidationError
from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, ValidationError
from standardwebhooks.webhooks import Webhook, WebhookVerificationError
from starlette.exceptions import HTTPException

from tenantry.api.access import Tenants
from tenantry.api.deliveries import Deliveries, Outcome
from tenantry.api.parameters import TENANT_PATTERN
from tenantry.api.problems import describe_problems
from tenantry.api.tenants import TenantChange
from tenantry.config import Settings
from tenantry.errors import ConfigError, NotAuthenticated, ProvisioningFailed, TenantNotFound
from tenantry.telemetry import signal
from tenantry.tenants.administration import Administration
from tenantry.tenants.principal import Principal

DELIVERED = signal(
    "api.webhook.delivered", "A delivery of the provisioning webhook was answered.", "type", "tenant", "outcome"
)

WEBHOOK: Final = Principal(actor="webhook")
SHORTEST_SECRET: Final = 24
AHEAD: Final = timedelta(minutes=5)

router = APIRouter(prefix="/v1/hooks", tags=["webhook"], responses=describe_problems(400, 401, 404, 409, 422))


class Account(TenantChange):
    """An account. What the sender adds to it for others is left aside."""

    model_config = ConfigDict(extra="ignore")

    id: str = Field(pattern=TENANT_PATTERN, description="the tenant")


class AccountEvent(BaseModel):
    type: str = Field(description="`account.created`, `.updated`, `.suspended`, `.resumed` or `.deleted`")
    timestamp: AwareDatetime | None = Field(
        None, description="when it happened; what is older than the newest that was heard changes nothing"
    )
    data: Account


class DeliveryAnswer(BaseModel):
    status: Outcome = Field(
        description="`handled`; `duplicate` if it was before; `outdated` if something newer was heard of the account; "
        "`ignored` if its type is not known"
    )


async def _put(tenants: Administration, account: Account, *, must_exist: bool) -> bool:
    tenant, _ = await tenants.put(account.to_spec(account.id), WEBHOOK.actor, must_exist=must_exist)
    return tenant.is_ready


async def _created(tenants: Administration, account: Account) -> bool:
    return await _put(tenants, account, must_exist=False)


async def _updated(tenants: Administration, account: Account) -> bool:
    # A late one must not bring a deleted tenant back; an early one is sent again.
    return await _put(tenants, account, must_exist=True)


async def _suspended(tenants: Administration, account: Account) -> bool:
    return (await tenants.suspend(account.id, WEBHOOK.actor)).is_ready


async def _resumed(tenants: Administration, account: Account) -> bool:
    return (await tenants.resume(account.id, WEBHOOK.actor)).is_ready


async def _deleted(tenants: Administration, account: Account) -> bool:
    try:
        await tenants.delete(account.id, WEBHOOK.actor)
    except TenantNotFound:
        return True
    except ProvisioningFailed:
        return False
    return True


_ACTS: Final[Mapping[str, Callable[[Administration, Account], Awaitable[bool]]]] = {
    "account.created": _created,
    "account.updated": _updated,
    "account.suspended": _suspended,
    "account.resumed": _resumed,
    "account.deleted": _deleted,
}
"""Each says whether the servers have it already."""


class ProvisioningHook:
    """The secret that deliveries are signed with, and those that were handled."""

    def __init__(self, secret: str, deliveries: Deliveries) -> None:
        self._webhook = _read_secret(secret)
        self.deliveries = deliveries

    @classmethod
    def from_settings(cls, settings: Settings, deliveries: Deliveries) -> ProvisioningHook | None:
        """None if the webhook is not set up."""
        secret = settings.webhook_secret
        return cls(secret.get_secret_value(), deliveries) if secret else None

    def verify(self, body: bytes, id: str, timestamp: str, signature: str) -> None:
        headers = {"webhook-id": id, "webhook-timestamp": timestamp, "webhook-signature": signature}
        try:
            self._webhook.verify(body, headers, json_parse=False)
        except (WebhookVerificationError, ValueError):
            # Which part was wrong would help nobody but a forger.
            raise NotAuthenticated("the delivery is not signed as it should be") from None


def _read_secret(secret: str) -> Webhook:
    problem = (
        f"expected webhook_secret to be whsec_ and at least {SHORTEST_SECRET} bytes in base64; make one with "
        '`echo "whsec_$(openssl rand -base64 32)"`'
    )
    try:
        key = _decode_base64(secret.removeprefix("whsec_"))
    except ValueError:
        raise ConfigError(problem) from None
    if len(key) < SHORTEST_SECRET:
        raise ConfigError(problem)
    return Webhook(key)


def _decode_base64(text: str) -> bytes:
    return binascii.a2b_base64(text + "=" * (-len(text) % 4), strict_mode=True)


_BODY: Final = {
    "requestBody": {
        "required": True,
        "content": {"application/json": {"schema": {"$ref": "#/components/schemas/AccountEvent"}}},
    }
}


@router.post(
    "/provisioning",
    openapi_extra=_BODY,
    responses={202: {"model": DeliveryAnswer, "description": "Recorded; the servers follow."}},
)
async def receive_provisioning(
    tenants: Tenants,
    request: Request,
    response: Response,
    webhook_id: Annotated[str, Header(max_length=255, description="the same each time it is sent")] = "",
    webhook_timestamp: Annotated[str, Header(description="when it was sent: at most 5 minutes ago")] = "",
    webhook_signature: Annotated[str, Header(description="`v1,` and the signature; several with spaces")] = "",
) -> DeliveryAnswer:
    """Take a delivery of an account system, signed as Standard Webhooks says.

    One that was handled before changes nothing. One that fails may be sent again. It needs no key: the signature is.
    """
    hook: ProvisioningHook | None = request.app.state.hook
    if hook is None:
        raise HTTPException(404, "the provisioning webhook is not set up: set webhook_secret")
    body = await request.body()
    # The id that was signed is the one that counts, even if the header is there twice.
    hook.verify(body, webhook_id, webhook_timestamp, webhook_signature)
    request.state.principal = WEBHOOK
    event = _read(body)
    if event is None:
        DELIVERED.emit(type="", tenant="", outcome=Outcome.IGNORED)
        return DeliveryAnswer(status=Outcome.IGNORED)
    if event.timestamp is not None and event.timestamp > datetime.now(UTC) + AHEAD:
        # Everything that happens until then would count as outdated.
        raise HTTPException(422, f"expected timestamp not to be ahead of our clock, got: {event.timestamp.isoformat()}")
    async with hook.deliveries.once(webhook_id, event.data.id, event.timestamp) as outcome:
        if outcome == Outcome.HANDLED and not await _ACTS[event.type](tenants, event.data):
            response.status_code = 202
    DELIVERED.emit(type=event.type, tenant=event.data.id, outcome=outcome)
    return DeliveryAnswer(status=outcome)


def _read(body: bytes) -> AccountEvent | None:
    """The event; None if it is none of ours."""
    try:
        document: Any = json.loads(body)
    except (ValueError, RecursionError):
        raise HTTPException(400, "expected the body to be JSON") from None
    if isinstance(document, dict) and isinstance(document.get("type"), str) and document["type"] not in _ACTS:
        return None
    try:
        return AccountEvent.model_validate(document)
    except ValidationError as problem:
        raise RequestValidationError([dict(each) for each in problem.errors()]) from None
