"""Schemas that the data of a tenant's events must fit, by the type of the event."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

from fastapi import APIRouter, Body, Depends, Path, Request, Response
from pydantic import BaseModel, ConfigDict, Field

from tenantry import event
from tenantry.api.access import GuardedRoute, Tenants, allow
from tenantry.api.parameters import TenantId
from tenantry.api.problems import describe_problems
from tenantry.ingest.intake import Intake
from tenantry.ingest.schemas import Schema, Schemas
from tenantry.tenants.principal import Principal

router = APIRouter(
    prefix="/v1/tenants/{id}/schemas",
    tags=["schemas"],
    route_class=GuardedRoute,
    responses=describe_problems(400, 401, 403, 404, 409, 422),
)

EventType = Annotated[
    str,
    Path(
        pattern=f"^{event.TYPE_PATTERN}$",
        max_length=event.LONGEST_TYPE,
        description="the type of event",
        examples=["order.created"],
    ),
]
Reader = Annotated[Principal, allow("schemas:read")]
Writer = Annotated[Principal, allow("schemas:write")]


def _schemas(request: Request) -> Schemas:
    intake: Intake = request.app.state.intake
    return intake.schemas


SchemaStore = Annotated[Schemas, Depends(_schemas)]


class SchemaDocument(BaseModel):
    """What the data of events of one type must look like."""

    model_config = ConfigDict(populate_by_name=True)

    type: str
    json_schema: dict[str, Any] = Field(alias="schema", description="a JSON Schema")
    updated_at: datetime

    @classmethod
    def of(cls, schema: Schema) -> SchemaDocument:
        return cls(type=schema.type, json_schema=schema.schema, updated_at=schema.updated_at)


class SchemaList(BaseModel):
    schemas: list[SchemaDocument]


@router.get("")
async def list_schemas(tenants: Tenants, schemas: SchemaStore, _: Reader, id: TenantId) -> SchemaList:
    """List the schemas of a tenant."""
    await tenants.registry.get(id)
    return SchemaList(schemas=[SchemaDocument.of(each) for each in await schemas.list(id)])


@router.get("/{type}")
async def get_schema(schemas: SchemaStore, _: Reader, id: TenantId, type: EventType) -> SchemaDocument:
    """See the schema for a type of event."""
    return SchemaDocument.of(await schemas.get(id, type))


@router.put("/{type}", responses={201: {"model": SchemaDocument, "description": "Created."}})
async def put_schema(
    schemas: SchemaStore,
    caller: Writer,
    id: TenantId,
    type: EventType,
    body: Annotated[dict[str, Any], Body(description="a JSON Schema", examples=[{"type": "object"}])],
    response: Response,
) -> SchemaDocument:
    """Set the schema for a type of event. Data that does not fit is refused from then on; other types are free.

    References may lead to other parts of the schema, though not in a circle, and nowhere else. Patterns have no
    look-around and no back-references.
    """
    schema, is_new = await schemas.put(id, type, body, caller.actor)
    if is_new:
        response.status_code = 201
    return SchemaDocument.of(schema)


@router.delete("/{type}", status_code=204, response_model=None)
async def delete_schema(schemas: SchemaStore, caller: Writer, id: TenantId, type: EventType) -> Response:
    """Delete the schema for a type of event; its data may then be anything."""
    await schemas.delete(id, type, caller.actor)
    return Response(status_code=204)
