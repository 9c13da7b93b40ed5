"""Who asks, found out before anything else of a request is looked at; and what each route asks of them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Annotated, Any, Final

from fastapi import Depends, Request, Response, Security
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer

from tenantry.api.tokens import Tokens
from tenantry.errors import NotAuthenticated
from tenantry.tenants.administration import Administration
from tenantry.tenants.api_keys import PREFIX, ApiKeys
from tenantry.tenants.principal import Principal

TENANT_PARAMETER: Final = "id"
"""In a path, this is a tenant; anything else that is named by an id has another parameter."""

_bearer = HTTPBearer(
    scheme_name="bearer",
    bearerFormat="API key or JWT",
    description="`Authorization: Bearer tk_…` with an API key, or with a JWT if tokens are set up.",
    auto_error=False,
)


class Doorkeeper:
    """Tells by a request's `Authorization` who sent it."""

    def __init__(self, keys: ApiKeys, tokens: Tokens | None) -> None:
        self._keys = keys
        self._tokens = tokens

    async def admit(self, request: Request) -> Principal:
        return await self.identify(request.headers.get("authorization", ""))

    async def identify(self, authorization: str) -> Principal:
        scheme, _, text = authorization.partition(" ")
        if scheme.lower() != "bearer" or not text.strip():
            raise NotAuthenticated("expected the header `Authorization: Bearer` with an API key or a token")
        if text.strip().startswith(PREFIX):
            return await self._keys.authenticate(text.strip())
        if self._tokens is None:
            raise NotAuthenticated("expected an API key: tokens are not set up (jwt_keys_url or jwt_secret)")
        return await self._tokens.authenticate(text.strip())


class Allowed:
    """Asks of a route's caller that it has a scope and, if the path names a tenant, may see that tenant."""

    def __init__(self, scope: str) -> None:
        self.scope = scope

    def __call__(
        self, request: Request, _: Annotated[HTTPAuthorizationCredentials | None, Security(_bearer)]
    ) -> Principal:
        principal: Principal = request.state.principal
        return principal

    async def check(self, request: Request) -> None:
        doorkeeper: Doorkeeper = request.app.state.doorkeeper
        request.state.principal = principal = await doorkeeper.admit(request)
        if (tenant := request.path_params.get(TENANT_PARAMETER)) is not None:
            # First of all, so that no answer depends on whether a tenant of others exists.
            principal.require_sight(tenant)
        principal.require(self.scope)


class GuardedRoute(APIRoute):
    """A route that checks its caller before it reads the body. One that asks for no scope cannot be made.

    A query parameter that it does not have is refused: a misspelt filter must not list everything.
    """

    def get_route_handler(self) -> Callable[[Request], Awaitable[Response]]:  # type: ignore[override]
        calls = [each.call for each in self.dependant.dependencies]
        (allowed,) = [call for call in calls if isinstance(call, Allowed)]
        self.description = f"{self.description}\n\nNeeds the scope `{allowed.scope}`.".strip()
        handle = super().get_route_handler()
        parameters = {each.alias for each in self.dependant.query_params}

        async def guarded(request: Request) -> Response:
            await allowed.check(request)
            if unknown := [name for name in request.query_params if name not in parameters]:
                raise RequestValidationError([{"loc": ("query", name), "msg": "is not known"} for name in unknown])
            return await handle(request)

        return guarded


def _administration(request: Request) -> Administration:
    found: Administration = request.app.state.administration
    return found


def _keys(request: Request) -> ApiKeys:
    found: ApiKeys = request.app.state.keys
    return found


Tenants = Annotated[Administration, Depends(_administration)]
KeyStore = Annotated[ApiKeys, Depends(_keys)]


def allow(scope: str) -> Any:
    """For `Annotated[Principal, allow("tenants:read")]`."""
    return Depends(Allowed(scope))
