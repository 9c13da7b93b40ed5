"""Relays as processes of their own, on servers that a test may do with as it likes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg

import nats_bulk
from tenantry.config import Settings
from tenantry.nats.connections import Broker
from tenantry.postgres.migrations import ensure_schema
from tenantry.tenants.administration import Administration
from tenantry.tenants.assembly import open_administration
from tenantry.tenants.lanes import Lane
from tenantry.testing import TestPlatform
from tests.own_server import OwnServer
from tests.processes import TENANTRY, wait_for

SECRET = "not much of a secret"
NO_LIMIT = {"publish_rate": 1_000_000, "publish_burst": 1_000_000, "storage": -1}


class RelayProcess:
    """`tenantry serve relay`."""

    def __init__(self, place: Place, number: int) -> None:
        self._output = place.folder / f"relay-{number}.log"
        with self._output.open("w") as output:
            self.process = subprocess.Popen(
                [TENANTRY, "serve", "relay", "--log-level", "debug", *place.arguments],
                env=os.environ | place.environment,
                stdout=output,
                stderr=subprocess.STDOUT,
            )

    @property
    def output(self) -> str:
        return self._output.read_text()

    def until_ready(self) -> None:
        wait_for(lambda: "outbox.connected" in self.output or self.process.poll() is not None)
        assert self.process.poll() is None, self.output

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            self.process.wait(30)


@dataclass
class Place:
    """A broker and a database, with tenants, and relays that carry for them."""

    administration: Administration
    database_url: str
    environment: dict[str, str]
    folder: Path
    arguments: tuple[str, ...] = ()
    relays: list[RelayProcess] = field(default_factory=list)
    _started: int = 0

    def start_relay(self) -> RelayProcess:
        self._started += 1
        relay = RelayProcess(self, self._started)
        self.relays.append(relay)
        return relay

    def lanes_left(self) -> int:
        with psycopg.connect(self.database_url, autocommit=True) as connection:
            row = connection.execute(
                """select count(*) from tenantry.outbox_cursors c where exists (
                       select from tenantry.outbox o where o.lane = c.lane and (o.ticket, o.id) > (c.ticket, c.id)
                   )"""
            ).fetchone()
        assert row is not None
        return int(row[0])

    def until_all_is_published(self) -> None:
        wait_for(lambda: not self.lanes_left())


@asynccontextmanager
async def place_of(own_nats: OwnServer, platform: TestPlatform, folder: Path, **settings: Any) -> AsyncIterator[Place]:
    """Tenants on a broker that may be killed."""
    async with platform.database() as url:
        await ensure_schema(url, may_migrate=True)
        async with open_administration(
            Settings(data=folder, **settings),
            broker=Broker(f"nats://{own_nats.address}"),
            authority=None,
            database_url=url,
            secret=SECRET,
        ) as administration:
            environment = {
                "NATS_URL": f"nats://{own_nats.address}",
                "DATABASE_URL": url,
                "TENANTRY_SECRET": SECRET,
                "TENANTRY_DATA": str(folder / "data"),
            }
            place = Place(administration, url, environment, folder)
            try:
                yield place
            finally:
                for relay in place.relays:
                    relay.kill()


def stored(address: str, lane: Lane) -> Iterator[tuple[str, bytes]]:
    """Message ids and payloads of a lane, in order."""
    with nats_bulk.Connection(f"nats://{address}") as connection:
        info = stream_info(connection, lane.stream)
        if not info["state"]["messages"]:
            return
        for batch in nats_bulk.read_range(
            connection, lane.stream, info["state"]["first_seq"], info["state"]["last_seq"]
        ):
            for subject, header, payload in zip(batch.subjects, batch.headers, batch.payloads, strict=True):
                if subject.startswith(f"{lane.prefix}."):
                    yield nats_bulk.parse_headers(header)["Nats-Msg-Id"][0], payload


def stream_info(connection: nats_bulk.Connection, stream: str) -> dict[str, Any]:
    answer: dict[str, Any] = json.loads(connection.request(f"$JS.API.STREAM.INFO.{stream}", b""))
    return answer
