"""An application's subscribers on the real servers, for a test: with a worker in this process, a relay and tenants."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

import msgspec

import nats_bulk
from tenantry.application import Tenantry
from tenantry.config import Settings
from tenantry.errors import TenantryError
from tenantry.event import Subject, now
from tenantry.nats.connections import connect_bulk
from tenantry.outbox import emit
from tenantry.outbox.service import RelayService
from tenantry.outbox.status import read_status
from tenantry.service import end
from tenantry.subscriptions.dead_letter_desk import DeadLetterDesk
from tenantry.subscriptions.found_letter import DeadLetterFilter, FoundLetter
from tenantry.subscriptions.lane_consumers import Lag, LaneConsumers, Served
from tenantry.subscriptions.spreading import Partition
from tenantry.subscriptions.worker import Limits, Worker
from tenantry.tenants.administration import Administration
from tenantry.tenants.roster import Roster
from tenantry.tenants.spec import TenantSpec
from tenantry.testing.servers import TestPlatform

ACTOR: Final = "testing"
PATIENCE: Final = 30.0
LOOK_SECONDS: Final = 0.02
DRAIN_SECONDS: Final = 5.0
MOST_LETTERS: Final = 1000


class Stage:
    """What a test has while the application's subscribers run."""

    def __init__(self, app: Tenantry, administration: Administration, roster: Roster, worker: Worker) -> None:
        self.administration = administration
        """All that can be done with tenants."""
        self.worker = worker
        self._app = app
        self._roster = roster
        self._consumers = LaneConsumers(administration.backbone)
        self._letters = DeadLetterDesk(administration)

    @property
    def database_url(self) -> str:
        """Of the database with our schema, for the connections of the code under test. Holds a password."""
        return _address(self.administration)

    async def tenant(self, name: str, *, tier: str = "stream", plan: str = "pro", **overrides: Any) -> str:
        """Make a tenant, or change it; its name."""
        await self.administration.put(TenantSpec(id=name, tier=tier, plan=plan, overrides=overrides), ACTOR)
        await self._roster.refresh()
        return name

    async def publish(
        self, tenant: str, type: str, data: Any = None, *, channel: str = "events", **attributes: Any
    ) -> str:
        """Put an event into the tenant's stream; its id. A tenant that is not there yet is made."""
        event = {
            "specversion": "1.0",
            "id": uuid4().hex,
            "source": "/testing",
            "type": type,
            "time": now(),
        } | attributes
        document = msgspec.json.encode(event if data is None else event | {"data": data})
        await self.publish_documents(tenant, type, [document], channel=channel)
        return str(event["id"])

    async def publish_documents(
        self, tenant: str, type: str, documents: Iterable[bytes], *, channel: str = "events"
    ) -> None:
        """Put messages as they are into the tenant's stream; they need not be events."""
        await self._require(tenant)
        lane = await self.administration.lanes.resolve(tenant, channel)
        subject = str(Subject.build(self.administration.lanes.app, tenant, channel, type))
        messages = [nats_bulk.Message(subject, document, uuid4().hex) for document in documents]

        def send() -> None:
            with connect_bulk(lane.broker, ACTOR) as connection:
                nats_bulk.publish(connection, messages).raise_for_errors()

        await asyncio.to_thread(send)

    async def emit(self, tenant: str, type: str, data: Any = None, **attributes: Any) -> str:
        """Emit an event in a transaction of its own; the relay carries it to the stream. Its id."""
        await self._require(tenant)
        async with self.administration.pool.connection() as connection:
            return await emit(connection, tenant, type, data, **attributes)

    async def until_idle(self, seconds: float = PATIENCE) -> None:
        """Wait until everything has been handled, retries included, or is a dead letter, or waits for one."""
        waiting = "nothing has been looked at"
        try:
            async with asyncio.timeout(seconds):
                while waiting := await self._waiting():
                    await asyncio.sleep(LOOK_SECONDS)
        except TimeoutError:
            raise TenantryError(f"not everything was handled within {seconds:g} s: {waiting}") from None

    async def dead_letters(self, tenant: str | None = None, service: str | None = None) -> list[FoundLetter]:
        """The newest first."""
        return await self._letters.page(DeadLetterFilter(tenant=tenant, service=service), MOST_LETTERS)

    async def redrive(self, tenant: str | None = None, service: str | None = None) -> None:
        """Let the worker handle dead letters again, and wait until it has."""
        await self._letters.redrive(DeadLetterFilter(tenant=tenant, service=service), ACTOR)
        async with asyncio.timeout(PATIENCE):
            while any(letter.job for letter in await self.dead_letters(tenant, service)):
                await asyncio.sleep(LOOK_SECONDS)
        await self.until_idle()

    async def _require(self, tenant: str) -> None:
        if self._roster.find(tenant) is None:
            await self.tenant(tenant)

    async def _waiting(self) -> str:
        """What is still to be done, if anything is."""
        async with self.administration.pool.connection() as connection:
            if pending := (await read_status(connection)).pending:
                return f"{pending} events are in the outbox"
        served = [
            Served(subscriber.name, subscriber.parts, lane)
            for tenant in self._roster
            for subscriber in self._app.subscribers.values()
            if (lane := self._roster.lane(tenant.id, subscriber.channel)) is not None
        ]
        return next((said for lag in await self._consumers.lag(served) if (said := self._problem(lag))), "")

    def _problem(self, lag: Lag) -> str:
        holding = self.worker.holdings.get(Partition(lag.service, lag.tenant_id, lag.part))
        if holding is None or holding.intake is None or lag.pending is None or lag.in_flight is None:
            return f"the worker has not taken up {lag.tenant_id} for {lag.service}: {lag.problem or 'no consumer yet'}"
        if holding.stopped_at is not None or holding.is_paused or not lag.pending + lag.in_flight:
            return ""
        return f"{lag.pending + lag.in_flight} events of {lag.tenant_id} for {lag.service}"


@asynccontextmanager
async def running(
    app: Tenantry, *, tenants: Iterable[str] = (), platform: TestPlatform | None = None
) -> AsyncIterator[Stage]:
    """Run the application's subscribers in this process, on servers that are gone afterwards.

        async with running(app, tenants=["acme"]) as stage:
            await stage.publish("acme", "invoice.paid", {"total": 5})
            await stage.until_idle()

    The embedded servers are started in a temporary folder, which takes some seconds; a test run with many such tests
    starts a TestPlatform once, and names it: then each has an account and a database of its own there.
    """
    async with (
        _given(platform) if platform else _own_platform() as servers,
        servers.administration() as administration,
        _working(app, administration) as stage,
    ):
        for tenant in tenants:
            await stage.tenant(tenant)
        yield stage


@asynccontextmanager
async def _given(platform: TestPlatform) -> AsyncIterator[TestPlatform]:
    yield platform


@asynccontextmanager
async def _own_platform() -> AsyncIterator[TestPlatform]:
    with _own_folder() as folder:
        platform = TestPlatform(folder)
        try:
            await platform.embedded.start()
            yield platform
        finally:
            await platform.embedded.stop()


@contextmanager
def _own_folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="tenantry-") as folder:
        # The user as whom root runs PostgreSQL must be able to walk through.
        Path(folder).chmod(0o711)
        yield Path(folder) / "data"


def _address(administration: Administration) -> str:
    address = administration.pool.conninfo
    assert isinstance(address, str)
    return address


@asynccontextmanager
async def _working(app: Tenantry, administration: Administration) -> AsyncIterator[Stage]:
    lanes, pool = administration.lanes, administration.pool
    roster = Roster(administration.registry, lanes)
    worker = Worker(
        app.name,
        app.subscribers.values(),
        broker=lanes.platform,
        roster=roster,
        lanes=lanes,
        pool=pool,
        limits=Limits(drain_seconds=DRAIN_SECONDS),
    )
    relay = RelayService(_address(administration), roster, lanes, Settings())
    await roster.start()
    loops = [asyncio.create_task(roster.run(), name="roster")]
    try:
        await relay.start()
        await worker.start()
        loops += [asyncio.create_task(service.run(), name=service.name) for service in (relay, worker)]
        yield Stage(app, administration, roster, worker)
        for loop in loops:
            if loop.done():
                # Whatever the test has seen, it was not the whole of it.
                loop.result()
    finally:
        await end(loops)
        await worker.stop()
        await relay.stop()
