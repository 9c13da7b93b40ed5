"""The roles that a process can have, as services: what `up` runs all of, and `serve` one of."""

from __future__ import annotations

from tenantry.api.app import build_app
from tenantry.api.server import ApiServer
from tenantry.api.tokens import Tokens
from tenantry.cli.session import administration_of
from tenantry.config import Settings
from tenantry.embedded.platform import EmbeddedPlatform
from tenantry.nats.connections import Broker
from tenantry.nats.reach import require_jetstream
from tenantry.postgres.migrations import ensure_schema
from tenantry.service import Deferred, Gate, Held, Service, forever
from tenantry.tenants.account_folder import Account
from tenantry.tenants.accounts_directory import AccountsDirectory
from tenantry.tenants.administration import Administration
from tenantry.tenants.reconciler import Reconciler


class Roles:
    """The services of one platform."""

    def __init__(self, platform: EmbeddedPlatform) -> None:
        self._platform = platform
        self._settings: Settings = platform.settings
        self.tenants: Held[Administration] = Held("tenants", lambda: administration_of(platform))
        self.api: ApiServer | None = None

    def servers(self) -> list[Service]:
        """What all other roles need: the servers, reachable and with our schema."""
        platform = self._platform
        return [
            platform,
            Gate("nats", lambda: require_jetstream(platform.broker)),
            Gate("schema", lambda: ensure_schema(platform.database_url, may_migrate=platform.postgres is not None)),
        ]

    def control(self, port: int | None = None) -> list[Service]:
        """Tenants are looked after, and the HTTP API answers."""
        services: list[Service] = [
            self.tenants,
            Deferred("reconciler", lambda: Reconciler(self.tenants.value)),
            Deferred("api", lambda: self._make_api(port)),
        ]
        settings = self._settings
        if settings.accounts_directory or settings.accounts:
            services.append(Deferred("accounts directory", self._make_accounts))
        return services

    def _make_accounts(self) -> AccountsDirectory:
        settings = self._settings
        return AccountsDirectory(
            self._platform.broker, settings.accounts_directory, settings.accounts, consume=_keep_verified
        )

    def _make_api(self, port: int | None) -> ApiServer:
        settings, administration = self._settings, self.tenants.value
        app = build_app(
            administration, keys=administration.keys, tokens=Tokens.from_settings(settings), settings=settings
        )
        self.api = ApiServer(app, settings.api_host, self._platform.settle_api_port() if port is None else port)
        return self.api


async def _keep_verified(account: Account, broker: Broker) -> None:  # noqa: ARG001
    """Streams of others are watched and verified; handing their events on is for subscriptions."""
    await forever()
