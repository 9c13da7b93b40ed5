"""The connections through which tenants are looked after: as the platform, as the system, inside their accounts."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Any

import nats.errors
from nats.aio.client import Client

from tenantry.errors import BrokerError, TenantConflict
from tenantry.nats import claims
from tenantry.nats.accounts import AccountServer
from tenantry.nats.authority import Authority, account_of
from tenantry.nats.connections import Broker, connect
from tenantry.nats.jetstream import JetStream
from tenantry.nats.keys import Key


class Backbone:
    """What is open for as long as tenants are looked after."""

    def __init__(self, broker: Broker, client: Client, accounts: AccountServer | None, operator: Key | None) -> None:
        self.broker = broker
        self.platform = JetStream(client)
        self._client = client
        self._accounts = accounts
        self._operator = operator

    @classmethod
    @asynccontextmanager
    async def open(cls, broker: Broker, authority: Authority | None) -> AsyncIterator[Backbone]:
        async with AsyncExitStack() as stack:
            client = await stack.enter_async_context(connect(broker, "tenantry-control"))
            accounts = None
            if authority:
                system = await stack.enter_async_context(connect(authority.system, "tenantry-accounts"))
                accounts = AccountServer(system, authority.operator)
            yield cls(broker, client, accounts, authority.operator if authority else None)

    @property
    def has_accounts(self) -> bool:
        return self._accounts is not None

    def require_accounts(self) -> None:
        if self._accounts is None:
            raise TenantConflict(
                "accounts and credentials need a NATS server in operator mode: use the embedded one, or set "
                "nats_operator_key and nats_system_creds"
            )

    @property
    def accounts(self) -> AccountServer:
        self.require_accounts()
        assert self._accounts is not None
        return self._accounts

    @property
    def operator(self) -> Key:
        assert self._operator is not None
        return self._operator

    @asynccontextmanager
    async def jetstream(self, broker: Broker) -> AsyncIterator[JetStream]:
        """JetStream as this user sees it; a connection is made for all but the platform's."""
        if broker == self.broker:
            yield self.platform
            return
        async with connect(broker, "tenantry-control") as client:
            yield JetStream(client)

    async def hint(self, subject: str) -> None:
        """An empty message in the platform's account, for whoever listens. Nothing may depend on it: it may be lost."""
        with suppress(nats.errors.Error, OSError):
            await self._client.publish(subject)

    async def establish_exports(self, exports: list[dict[str, Any]]) -> None:
        """Make the platform's account offer what tenants' accounts import, and leave all else of it as it is."""
        account = account_of(self.broker)
        token = await self.accounts.lookup(account)
        if token is None:
            raise BrokerError(f"the server does not know the platform's account {account}; check NATS_CREDS")
        said = claims.read(token)
        have = said["nats"].get("exports") or []
        missing = [each for each in exports if not any(_same_export(each, other) for other in have)]
        if missing:
            body = said["nats"] | {"exports": have + missing}
            await self.accounts.push(
                claims.sign(
                    self.operator, account, "account", body, name=said.get("name", ""), expires_at=said.get("exp")
                )
            )


def _same_export(one: dict[str, Any], other: dict[str, Any]) -> bool:
    return (one["subject"], one["type"]) == (other["subject"], other["type"])
