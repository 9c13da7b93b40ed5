"""The servers are started once per run, by the process that runs pytest; its workers attach to them.

Tiers, by folder: `unit` uses no server, `servers` the shared ones, `embedded` and `cli` start servers of their own,
`spark` starts a JVM.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

from tenantry.nats.connections import Broker
from tenantry.tenants.administration import Administration
from tenantry.testing import TestPlatform
from tests.own_server import OwnServer

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.spark.cluster import Cluster

# These JVMs live for seconds: a compiler and a collector that begin at once are worth more than fast ones, and to
# verify the classes of Spark, which a wheel with a known hash brought, takes a third of a start.
os.environ.setdefault(
    "JAVA_TOOL_OPTIONS",
    "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:ReservedCodeCacheSize=200m "
    "-XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote",
)

# Spark takes its time to start, and few of those who start a platform want it. Also for what is made before each test.
os.environ["TENANTRY_PIPELINES"] = "false"

FOLDER_VARIABLE = "SERVERS_UNDER_TEST"

# A busy machine must not fail a test: no deadlines, no complaint about slow generation.
settings.register_profile("tenantry", deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True)
settings.load_profile("tenantry")


class Servers:
    """Keeps the shared servers for the length of the run."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="tenantry-tests-"))
        open_to_others(self.folder)
        self.platform = TestPlatform(self.folder)
        os.environ[FOLDER_VARIABLE] = str(self.folder)

    def pytest_sessionstart(self) -> None:
        self.platform.start()

    def pytest_unconfigure(self) -> None:
        self.platform.stop()
        shutil.rmtree(self.folder, ignore_errors=True)


def open_to_others(folder: Path) -> None:
    """Let the user as whom root runs PostgreSQL walk through."""
    if os.geteuid() == 0:
        folder.chmod(0o711)


def pytest_configure(config: pytest.Config) -> None:
    is_worker = hasattr(config, "workerinput")
    if not is_worker and not config.option.collectonly:
        config.pluginmanager.register(Servers())


@pytest.fixture(scope="session", autouse=True)
def _temporary_folders_can_be_walked(tmp_path_factory: pytest.TempPathFactory) -> None:
    base = tmp_path_factory.getbasetemp()
    for folder in (base, *base.parents):
        if folder.parent == Path(tempfile.gettempdir()).parent:
            break
        open_to_others(folder)


@pytest.fixture(autouse=True)
def _no_settings_from_outside(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    open_to_others(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "share"))
    for variable in list(os.environ):
        if variable.startswith(("TENANTRY_", "NATS_", "PG")) or variable in ("DATABASE_URL", "JAVA_HOME"):
            monkeypatch.delenv(variable)
    monkeypatch.setenv("TENANTRY_PIPELINES", "false")


@pytest.fixture(scope="session")
def platform() -> TestPlatform:
    """The servers of this run."""
    attached = TestPlatform(Path(os.environ[FOLDER_VARIABLE]))
    attached.attach()
    return attached


@pytest.fixture
async def account(platform: TestPlatform) -> AsyncIterator[Broker]:
    """A NATS account that no other test uses."""
    async with platform.account() as broker:
        yield broker


@pytest.fixture
async def database(platform: TestPlatform) -> AsyncIterator[str]:
    """The address of an empty database."""
    async with platform.database() as url:
        yield url


@pytest.fixture
async def administration(platform: TestPlatform) -> AsyncIterator[Administration]:
    """Tenants that no other test has."""
    async with platform.administration() as opened:
        yield opened


@pytest.fixture
async def own_nats(tmp_path: Path) -> AsyncIterator[OwnServer]:
    """A server without operator mode, which a test may kill."""
    folder = tmp_path / "own-nats"
    folder.mkdir()
    server = OwnServer(folder, "")
    await server.start()
    yield server
    await server.stop()


@pytest.fixture
def signals() -> Iterator[list[tuple[str, dict[str, object]]]]:
    """Every signal that is emitted during the test."""
    from tenantry import telemetry

    seen: list[tuple[str, dict[str, object]]] = []
    end = telemetry.subscribe(lambda signal, fields: seen.append((signal.name, dict(fields))))
    yield seen
    end()


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """Started once per worker, and shared by its tests."""
    from tenantry.pipelines.session import open_session

    config = {"spark.sql.streaming.numRecentProgressUpdates": "100"}
    session = open_session("tests", tmp_path_factory.mktemp("spark"), master="local[2]", config=config)
    yield session
    session.stop()


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """One for all tests of the group spark-cluster, which run in one worker."""
    from tests.spark.cluster import Cluster

    with Cluster(tmp_path_factory.mktemp("cluster")) as running:
        yield running
