"""Credentials with which Spark reads lanes: they can do nothing else, and not for long."""

from __future__ import annotations

import time
from typing import Final

from nats_bulk import Credentials
from pyspark_nats import Access
from tenantry.config import Settings
from tenantry.nats.claims import Permission, UserPermissions, issue_user
from tenantry.nats.keys import Key
from tenantry.tenants.lanes import Lane, Lanes
from tenantry.tenants.tenant import Tenant

LIFETIME: Final = 3600.0
RENEW_AFTER: Final = LIFETIME / 2
NAME: Final = "tenantry-pipelines"
_EVERY_STREAM: Final = ["$JS.API.DIRECT.GET.>", "$JS.API.STREAM.INFO.*", "$JS.API.STREAM.LIST"]


class ReadAccess:
    """A lane in its tenant's account is read by a user that may read its stream alone.

    Streams in the platform's account are read by one user together: a credential for each would be a connection for
    each, in every task, and one that listed a thousand would be larger than what a server takes.
    """

    def __init__(self, lanes: Lanes, settings: Settings, platform_key: Key | None) -> None:
        self._lanes = lanes
        self._settings = settings
        self._platform_key = platform_key
        self._issued: dict[tuple[str, str], tuple[float, Access]] = {}

    def to(self, tenant: Tenant, lane: Lane) -> Access:
        is_platforms = lane.account == self._lanes.platform_account
        name = (lane.account, "" if is_platforms else lane.stream)
        at, access = self._issued.get(name, (0.0, None))
        if access is None or time.monotonic() - at > RENEW_AFTER:
            access = self._access(lane, self._platforms() if is_platforms else self._tenants(tenant, lane))
            self._issued[name] = time.monotonic(), access
        return access

    def _platforms(self) -> Credentials:
        if self._platform_key is None:
            return self._lanes.platform.credentials
        return _reader(self._platform_key, _EVERY_STREAM)

    def _tenants(self, tenant: Tenant, lane: Lane) -> Credentials:
        return _reader(self._lanes.account_key(tenant), [*lane.direct_get(), f"$JS.API.STREAM.INFO.{lane.stream}"])

    def _access(self, lane: Lane, credentials: Credentials) -> Access:
        settings = self._settings
        return Access(
            lane.broker.url,
            credentials,
            tls_ca=str(settings.nats_tls_ca or ""),
            tls_cert=str(settings.nats_tls_cert or ""),
            tls_key=str(settings.nats_tls_key or ""),
        )


def _reader(account: Key, publish: list[str]) -> Credentials:
    permissions = UserPermissions(pub=Permission(allow=publish), sub=Permission(allow=["_INBOX.>"]))
    return issue_user(account, NAME, permissions=permissions, lifetime=LIFETIME)
