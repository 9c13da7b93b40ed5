"""Documents that projections keep of a tenant's events."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Final

import msgspec
from fastapi import APIRouter, Depends, Header, Path, Query, Request, Response
from pydantic import BaseModel, Field, JsonValue

from tenantry.api.access import GuardedRoute, Tenants, allow
from tenantry.api.parameters import Limit, TenantFilter
from tenantry.api.problems import describe_problems
from tenantry.application import LONGEST_KEY, NAME_PATTERN
from tenantry.errors import TenantInvalid, TenantNotFound
from tenantry.pipelines.documents import Document, Documents
from tenantry.tenants.principal import Principal

Reader = Annotated[Principal, allow("documents:read")]
ProjectionName = Annotated[
    str, Path(pattern=f"^{NAME_PATTERN}$", description="the projection", examples=["customer-totals"])
]

UNCHANGED: Final[dict[int | str, dict[str, Any]]] = {304: {"description": "It is still the one that was named."}}
TAGGED: Final[dict[int | str, dict[str, Any]]] = {
    200: {
        "headers": {
            "ETag": {"schema": {"type": "string"}, "description": "another one whenever the document has changed"}
        }
    }
}

router = APIRouter(
    prefix="/v1/documents",
    tags=["documents"],
    route_class=GuardedRoute,
    responses=describe_problems(400, 401, 403, 404, 422),
)


class ProjectionDocument(BaseModel):
    """What a projection made of a tenant's events."""

    id: str = Field(description="its key")
    projection: str
    document: JsonValue
    sequence: int = Field(description="the last event that was applied to it")
    updated_at: datetime

    @staticmethod
    def fields_of(document: Document) -> dict[str, Any]:
        return {name: getattr(document, name) for name in ProjectionDocument.model_fields}


class DocumentPage(BaseModel):
    documents: list[ProjectionDocument]
    next: str | None = Field(description="`after` for the next page; null on the last one")


def _documents(request: Request) -> Documents:
    found: Documents = request.app.state.documents
    return found


DocumentStore = Annotated[Documents, Depends(_documents)]


@router.get("/{projection}", response_model=DocumentPage)
async def list_documents(
    tenants: Tenants,
    documents: DocumentStore,
    caller: Reader,
    projection: ProjectionName,
    tenant: TenantFilter = None,
    after: Annotated[str | None, Query(max_length=LONGEST_KEY, description="the id after which to go on")] = None,
    limit: Limit = 100,
) -> Response:
    """List the documents of a projection by id."""
    owner = _owner(caller, tenant)
    await tenants.registry.get(owner)
    found = await documents.list(owner, projection, after, limit + 1)
    page = {
        "documents": [ProjectionDocument.fields_of(each) for each in found[:limit]],
        "next": found[limit - 1].id if len(found) > limit else None,
    }
    return _as_json(page)


@router.get("/{projection}/{document_id:path}", response_model=ProjectionDocument, responses=TAGGED | UNCHANGED)
async def get_document(
    documents: DocumentStore,
    caller: Reader,
    projection: ProjectionName,
    document_id: Annotated[str, Path(min_length=1, max_length=LONGEST_KEY, description="the document's key")],
    tenant: TenantFilter = None,
    if_none_match: Annotated[str | None, Header(description="an `ETag`: 304 if that is still the document")] = None,
) -> Response:
    """Read a document."""
    owner = _owner(caller, tenant)
    found = await documents.find(owner, projection, document_id)
    if found is None:
        raise TenantNotFound(f"tenant {owner} has no document {document_id!r} of projection {projection!r}")
    # A rebuild makes other documents of the same events.
    tag = f'"{found.generation}-{found.sequence}"'
    if _names(if_none_match, tag):
        return Response(status_code=304, headers={"ETag": tag})
    return _as_json(ProjectionDocument.fields_of(found), ETag=tag)


def _owner(caller: Principal, tenant: str | None) -> str:
    if tenant is not None:
        caller.require_sight(tenant)
    owner = tenant or caller.tenant
    if owner is None:
        raise TenantInvalid("tenant", "expected the query parameter tenant, as this key or token is for all tenants")
    return owner


def _names(if_none_match: str | None, tag: str) -> bool:
    named = [each.strip().removeprefix("W/") for each in (if_none_match or "").split(",")]
    return tag in named or "*" in named


def _as_json(answer: dict[str, Any], **headers: str) -> Response:
    """With documents as they are stored, neither decoded nor checked."""
    return Response(msgspec.json.encode(answer), headers=headers, media_type="application/json")
