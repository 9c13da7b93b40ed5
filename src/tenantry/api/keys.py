"""API keys."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from fastapi import APIRouter, Path
from pydantic import BaseModel, ConfigDict, Field

from tenantry.api.access import GuardedRoute, KeyStore, allow
from tenantry.api.parameters import TENANT_PATTERN, Duration
from tenantry.api.problems import describe_problems
from tenantry.tenants.api_keys import ApiKey
from tenantry.tenants.principal import Principal
from tenantry.tenants.quantities import parse_duration

Keeper = Annotated[Principal, allow("keys:write")]

router = APIRouter(
    prefix="/v1/keys",
    tags=["keys"],
    route_class=GuardedRoute,
    responses=describe_problems(400, 401, 403, 404, 422),
)


class KeyDocument(BaseModel):
    """A key without its secret."""

    id: str
    name: str
    tenant_id: str | None = Field(description="the one tenant that it is for; null: the platform")
    scopes: list[str]
    created_at: datetime
    expires_at: datetime | None
    revoked_at: datetime | None

    @classmethod
    def of(cls, key: ApiKey) -> KeyDocument:
        return cls.model_validate(key.describe())


class KeyList(BaseModel):
    keys: list[KeyDocument]


class CreatedKey(BaseModel):
    key: KeyDocument
    text: str = Field(description="the key itself; it is kept nowhere and cannot be had again")


class WantedKey(BaseModel):
    model_config = ConfigDict(extra="forbid")

    name: str = Field(description="for people", examples=["billing"])
    scopes: list[str] = Field(description="what it may do; `*` is everything", examples=[["tenants:read"]])
    tenant: str | None = Field(None, pattern=TENANT_PATTERN, description="the one tenant that it is to be for")
    lifetime: Duration | None = Field(
        None, description="how long it holds: seconds, or a text like `90d`; null: until it is revoked"
    )


@router.get("")
async def list_keys(keys: KeyStore, _: Keeper) -> KeyList:
    """List all keys, with those that are no longer valid."""
    return KeyList(keys=[KeyDocument.of(each) for each in await keys.list()])


@router.post("", status_code=201)
async def create_key(keys: KeyStore, caller: Keeper, body: WantedKey) -> CreatedKey:
    """Create a key with scopes that one has oneself. Its text is in this answer and nowhere else."""
    for scope in body.scopes:
        caller.require(scope)
    key, text = await keys.create(
        caller.actor,
        name=body.name,
        scopes=body.scopes,
        tenant=body.tenant,
        lifetime=None if body.lifetime is None else parse_duration("lifetime", body.lifetime),
    )
    return CreatedKey(key=KeyDocument.of(key), text=text)


@router.delete("/{key}", status_code=204)
async def revoke_key(
    keys: KeyStore, caller: Keeper, key: Annotated[str, Path(pattern="^[0-9a-f]{12}$", description="the key's id")]
) -> None:
    """Refuse a key from now on."""
    await keys.revoke(key, caller.actor)
