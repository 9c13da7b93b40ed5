"""The lake in a store that speaks S3: the same as in a folder."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import polars as pl
import pytest

from tenantry.embedded.ports import free_port
from tenantry.pipelines.table_upkeep import ENOUGH_SMALL, TableUpkeep
from tenantry.pipelines.tables import Mark
from tests.pipelines.own_lake import OwnLake, numbered
from tests.processes import wait_for

BUCKET = "lake"


class Store:
    """A server in a process of its own: in ours it would wait for the interpreter while we wait for it."""

    def __init__(self, folder: Path) -> None:
        self.options = {
            "AWS_ACCESS_KEY_ID": "somebody",
            "AWS_SECRET_ACCESS_KEY": "something",
            "AWS_REGION": "us-east-1",
            "AWS_ALLOW_HTTP": "true",
        }
        self._log = folder / "store.log"

    def __enter__(self) -> Store:
        port = free_port()
        url = self.options["AWS_ENDPOINT_URL"] = f"http://127.0.0.1:{port}"
        with self._log.open("w") as log:
            command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
            self._process = subprocess.Popen(command, stdout=log, stderr=log)
        wait_for(lambda: _answers(url))
        httpx.put(f"{url}/{BUCKET}").raise_for_status()
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()

    def contents(self) -> list[str]:
        listed = httpx.get(f"{self.options['AWS_ENDPOINT_URL']}/{BUCKET}?list-type=2")
        return re.findall("<Key>(.*?)</Key>", listed.raise_for_status().text)


def _answers(url: str) -> bool:
    try:
        return httpx.get(url).status_code == 200
    except httpx.TransportError:
        return False


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    with Store(tmp_path_factory.mktemp("store")) as running:
        yield running


@pytest.fixture
def lake(store: Store, request: pytest.FixtureRequest) -> OwnLake:
    return OwnLake(f"s3://{BUCKET}/{request.node.name}", store.options)


def test_what_is_written_is_read_compacted_and_erased(lake: OwnLake, store: Store) -> None:
    place, neighbour = lake.place("acme"), lake.place("acme", "events-of-others")
    for number in range(ENOUGH_SMALL):
        lake.append_numbered(place, number * 10)
    lake.append_numbered(neighbour, 0)
    assert lake.sequences(place) == list(range(10 * ENOUGH_SMALL))
    done = TableUpkeep(lake.lake).look_after(place, -1)
    assert done is not None
    assert (done.files_before, done.figures.files) == (ENOUGH_SMALL, 1)
    assert lake.sequences(place) == list(range(10 * ENOUGH_SMALL))
    frame = pl.read_delta(place, storage_options=store.options)
    assert sorted(frame["sequence"].to_list()) == list(range(10 * ENOUGH_SMALL))
    lake.write_file(place, [numbered(1000)])
    swept = TableUpkeep(lake.lake, keep_hours=0).look_after(place, -1)
    assert swept is not None
    assert swept.files_removed == ENOUGH_SMALL + 1
    for _ in range(2):
        lake.lake.erase(place)
        assert [key for key in store.contents() if "tenant=acme/events/" in key] == []
    assert lake.tables.open(place) is None
    assert lake.sequences(neighbour) == list(range(10))


def test_writers_who_commit_at_once_lose_nothing_and_double_nothing(lake: OwnLake, store: Store) -> None:
    place, problems = lake.place("acme"), []
    lake.append_numbered(place, 0)

    def write(writer: int) -> None:
        own = OwnLake(lake.root, store.options)
        try:
            for number in range(1, 6):
                for _ in range(2):
                    own.append(place, [numbered(writer * 100 + number)], mark=Mark(f"writer {writer}", number))
        except Exception as problem:
            problems.append(problem)

    writers = [threading.Thread(target=write, args=(writer,)) for writer in (1, 2)]
    for thread in writers:
        thread.start()
    while any(thread.is_alive() for thread in writers):
        TableUpkeep(lake.lake, enough_small=2).look_after(place, -1)
    for thread in writers:
        thread.join()
    assert problems == []
    assert lake.sequences(place) == [*range(10), *range(101, 106), *range(201, 206)]
