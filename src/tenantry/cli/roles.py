"""The roles that a process can have, as services: what `up` runs all of, and `serve` one of."""

from __future__ import annotations

from collections.abc import Sequence

from tenantry.api.app import build_app
from tenantry.api.server import ApiServer
from tenantry.api.tokens import Tokens
from tenantry.application import Tenantry
from tenantry.cli.role_process import pipelines_folder
from tenantry.cli.session import administration_of
from tenantry.cli.worker_process import WorkerProcess
from tenantry.config import Settings
from tenantry.embedded.platform import EmbeddedPlatform
from tenantry.nats.connections import Broker
from tenantry.nats.reach import require_jetstream
from tenantry.outbox.following import LaneFollower
from tenantry.outbox.service import RelayService
from tenantry.outbox.upkeep import Upkeep
from tenantry.postgres.migrations import ensure_schema
from tenantry.postgres.pool import Pool, open_pool
from tenantry.service import Deferred, Gate, Held, Service, forever
from tenantry.subscriptions.fleet import Fleet
from tenantry.subscriptions.posted_jobs import PostedJobs
from tenantry.subscriptions.push_delivery import Deliverer
from tenantry.subscriptions.push_endpoints import PushEndpoints
from tenantry.subscriptions.roll_reader import RollReader
from tenantry.subscriptions.scaling import Bounds, Pace
from tenantry.subscriptions.worker import Limits, Worker
from tenantry.tenants.account_folder import Account
from tenantry.tenants.accounts_directory import AccountsDirectory, Consume
from tenantry.tenants.administration import Administration
from tenantry.tenants.reconciler import Reconciler
from tenantry.tenants.roster import Roster
from tenantry.tenants.tenant import Status


class Roles:
    """The services of one platform."""

    def __init__(self, platform: EmbeddedPlatform) -> None:
        self._platform = platform
        self._settings: Settings = platform.settings
        self.tenants: Held[Administration] = Held("tenants", lambda: administration_of(platform))
        self._outbox: Held[Pool] = Held("outbox", lambda: open_pool(self._outbox_url, self._settings.database_pool))
        self._roster: Roster | None = None
        self.api: ApiServer | None = None

    def servers(self) -> list[Service]:
        """What all other roles need: the servers, reachable and with our schema."""
        platform = self._platform
        return [
            platform,
            Gate("nats", lambda: require_jetstream(platform.broker)),
            Gate("schema", lambda: ensure_schema(platform.database_url, may_migrate=platform.postgres is not None)),
        ]

    def registry(self) -> list[Service]:
        """Who the tenants are; all roles that follow need it."""
        services: list[Service] = [self.tenants, Deferred("roster", self._make_roster)]
        if self._settings.outbox_url:
            services += [
                Gate("outbox schema", lambda: ensure_schema(self._outbox_url, may_migrate=False, outbox_only=True)),
                self._outbox,
            ]
        return services

    def relay(self) -> list[Service]:
        """What is emitted is carried to the lanes."""
        services: list[Service] = [Deferred("outbox upkeep", self._make_upkeep), Deferred("relay", self._make_relay)]
        if self._settings.outbox_url:
            services.insert(0, Deferred("outbox lanes", lambda: LaneFollower(self._outbox_url, self.roster)))
        return services

    def pipelines(self, application: Tenantry | None) -> list[Service]:
        """Events become tables and documents, in this process."""
        return [
            Deferred("pipelines", lambda: self._make_supervisor(application)),
            Deferred("table maintenance", self._make_maintenance),
        ]

    def worker(self, application: Tenantry | None) -> list[Service]:
        """Events are handed to the application's subscribers, in this process."""
        return [Deferred("worker", lambda: self._make_worker(application))]

    def fleet(self, application: Tenantry | None, bounds: Bounds, pace: Pace, *, with_dedicated: bool) -> list[Service]:
        """The same in other processes, as many as are needed."""
        return [Deferred("fleet", lambda: self._make_fleet(application, bounds, pace, with_dedicated))]

    @property
    def roster(self) -> Roster:
        assert self._roster is not None
        return self._roster

    @property
    def _outbox_url(self) -> str:
        own = self._settings.outbox_url
        return own.get_secret_value() if own else self._platform.database_url

    def _make_upkeep(self) -> Upkeep:
        settings = self._settings
        return Upkeep(
            self._outbox_url,
            keep=settings.outbox_keep,
            stall_seconds=settings.outbox_stall_seconds,
            once_keep=settings.once_keep,
        )

    def _make_relay(self) -> RelayService:
        return RelayService(self._outbox_url, self.roster, self.tenants.value.lanes, self._settings)

    def _make_supervisor(self, application: Tenantry | None) -> Service:
        # Only whoever runs pipelines waits for Spark to be imported.
        from tenantry.pipelines.supervisor import Supervisor

        return Supervisor(
            self._settings,
            application,
            roster=self.roster,
            lanes=self.tenants.value.lanes,
            platform_key=self._platform.account_key,
            database_url=self._platform.database_url,
            folder=pipelines_folder(self._settings),
        )

    def _make_worker(self, application: Tenantry | None) -> Worker:
        settings, tenants = self._settings, self.tenants.value
        return Worker(
            application.name if application else "",
            application.subscribers.values() if application else (),
            broker=self._platform.broker,
            roster=self.roster,
            lanes=tenants.lanes,
            pool=tenants.pool,
            replicas=settings.nats_replicas,
            tenants=frozenset(settings.worker_tenants),
            plans=frozenset(settings.worker_plans),
            limits=Limits(settings.worker_slots, settings.worker_threads, settings.worker_drain_seconds),
            push=lambda: (
                PushEndpoints.from_settings(settings, tenants),
                Deliverer.from_settings(settings, tenants.keyring),
            ),
            accounts=self._make_accounts if settings.accounts_directory or settings.accounts else None,
        )

    def _make_fleet(self, application: Tenantry | None, bounds: Bounds, pace: Pace, with_dedicated: bool) -> Fleet:
        tenants = self.tenants.value

        def spawn(flags: Sequence[str]) -> WorkerProcess:
            return WorkerProcess(self._platform, flags)

        jobs = PostedJobs(
            tenants.pool,
            application.name if application else "",
            spawn,
            dedicated=self._dedicated_tenants if with_dedicated else None,
        )
        reader = RollReader(tenants.lanes.app, self._platform.broker)
        return Fleet(bounds, spawn=spawn, reader=reader, jobs=jobs, pace=pace)

    def _dedicated_tenants(self) -> list[str]:
        return [each.id for each in self.roster if each.limits.dedicated and each.status == Status.ACTIVE]

    def _make_maintenance(self) -> Service:
        from tenantry.pipelines.lake import Lake
        from tenantry.pipelines.maintenance import Maintenance

        tenants = self.tenants.value
        return Maintenance(tenants.pool, tenants.registry, tenants.audit, Lake.from_settings(self._settings))

    def _make_roster(self) -> Roster:
        self._roster = Roster(self.tenants.value.registry, self.tenants.value.lanes)
        return self._roster

    def control(self, port: int | None = None) -> list[Service]:
        """Tenants are looked after, and the HTTP API answers."""
        services: list[Service] = [
            Deferred("reconciler", lambda: Reconciler(self.tenants.value)),
            Deferred("api", lambda: self._make_api(port)),
        ]
        settings = self._settings
        if settings.accounts_directory or settings.accounts:
            services.append(Deferred("accounts directory", lambda: self._make_accounts(_keep_verified)))
        return services

    def _make_accounts(self, consume: Consume) -> AccountsDirectory:
        settings = self._settings
        return AccountsDirectory(self._platform.broker, settings.accounts_directory, settings.accounts, consume=consume)

    def _make_api(self, port: int | None) -> ApiServer:
        settings, administration = self._settings, self.tenants.value
        app = build_app(
            administration,
            keys=administration.keys,
            tokens=Tokens.from_settings(settings),
            settings=settings,
            roster=self.roster,
            outbox=self._outbox.value if settings.outbox_url else administration.pool,
        )
        self.api = ApiServer(app, settings.api_host, self._platform.settle_api_port() if port is None else port)
        return self.api


async def _keep_verified(account: Account, broker: Broker) -> None:  # noqa: ARG001
    """Streams of others are watched and verified; workers hand their events on."""
    await forever()
