"""NATS credentials of tenants: issued, listed, rotated, revoked."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Path
from pydantic import BaseModel, ConfigDict, Field

from nats_bulk import Credentials
from tenantry.api.access import GuardedRoute, Tenants, allow
from tenantry.api.parameters import Duration, TenantId
from tenantry.api.problems import describe_problems
from tenantry.nats.claims import format_credentials
from tenantry.tenants.credentials import Credential, Kind
from tenantry.tenants.principal import Principal
from tenantry.tenants.quantities import parse_duration

Writer = Annotated[Principal, allow("credentials:write")]
CredentialId = Annotated[UUID, Path(description="the credential")]

router = APIRouter(
    prefix="/v1/tenants/{id}/credentials",
    tags=["credentials"],
    route_class=GuardedRoute,
    responses=describe_problems(400, 401, 403, 404, 409, 422),
)


class CredentialDocument(BaseModel):
    """A user that was issued for a tenant: what it can be recognised by, not what it can be used with."""

    id: UUID
    tenant_id: str
    name: str
    kind: Kind
    consumer: str | None
    channel: str | None
    user_key: str = Field(description="the public key of the NATS user")
    issued_at: datetime
    expires_at: datetime | None
    revoked_at: datetime | None

    @classmethod
    def of(cls, credential: Credential) -> CredentialDocument:
        return cls.model_validate(credential.describe())


class CredentialList(BaseModel):
    credentials: list[CredentialDocument]


class IssuedCredential(BaseModel):
    credential: CredentialDocument
    creds: str = Field(description="the text of the .creds file; it is kept nowhere and cannot be had again")

    @classmethod
    def of(cls, issued: tuple[Credential, Credentials]) -> IssuedCredential:
        credential, secret = issued
        return cls(credential=CredentialDocument.of(credential), creds=format_credentials(secret))


class WantedCredential(BaseModel):
    model_config = ConfigDict(extra="forbid")

    name: str = Field("default", description="for people")
    kind: Kind = Field(Kind.CLIENT, description="what it is for; a `client` publishes and reads back")
    consumer: str | None = Field(None, description="a service whose durable consumer it may fetch from")
    channel: str = Field("events", description="the channel of that consumer")
    lifetime: Duration | None = Field(
        None, description="how long it holds: seconds, or a text like `90d`; null: until it is revoked"
    )


class Rotation(BaseModel):
    model_config = ConfigDict(extra="forbid")

    keep_old: bool = Field(False, description="leave the old credential valid, to be revoked later")


@router.get("")
async def list_credentials(
    tenants: Tenants, _: Annotated[Principal, allow("credentials:read")], id: TenantId
) -> CredentialList:
    """List a tenant's credentials, with those that were revoked."""
    await tenants.registry.get(id)
    return CredentialList(credentials=[CredentialDocument.of(each) for each in await tenants.credentials.of(id)])


@router.post("", status_code=201)
async def issue_credential(tenants: Tenants, caller: Writer, id: TenantId, body: WantedCredential) -> IssuedCredential:
    """Issue a credential. Its secret is in this answer and nowhere else."""
    return IssuedCredential.of(
        await tenants.credentials.issue(
            id,
            caller.actor,
            name=body.name,
            kind=body.kind,
            consumer=body.consumer,
            channel=body.channel,
            lifetime=None if body.lifetime is None else parse_duration("lifetime", body.lifetime),
        )
    )


@router.delete("/{cid}", status_code=204)
async def revoke_credential(tenants: Tenants, caller: Writer, id: TenantId, cid: CredentialId) -> None:
    """Lock a credential's user out, at once and for good."""
    await tenants.credentials.revoke(id, cid, caller.actor)


@router.post("/{cid}/rotate", status_code=201)
async def rotate_credential(
    tenants: Tenants, caller: Writer, id: TenantId, cid: CredentialId, body: Rotation | None = None
) -> IssuedCredential:
    """Issue a credential of the same kind and revoke the old one."""
    await tenants.registry.get(id)
    rotated = await tenants.credentials.rotate(id, cid, caller.actor, keep_old=bool(body and body.keep_old))
    return IssuedCredential.of(rotated)
