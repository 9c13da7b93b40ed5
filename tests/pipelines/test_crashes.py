"""Everything is killed, again and again; in the end every event is once where it belongs.

`STORM_ROUNDS` asks for more rounds than a run of all tests has time for.
"""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from tests.pipelines.storm import Storm

pytestmark = [pytest.mark.xdist_group("spark-storm"), pytest.mark.timeout(1800)]

# Before and after each point behind which something is for good: what a batch reads, the files of a table, the commit
# of a table, the position of a lane, the documents.
POINTS = [
    "warehouse:planned",
    "warehouse:written",
    "warehouse:committed",
    "warehouse:recorded",
    "orders:written",
    "orders:committed",
    "orders:recorded",
    "customers:planned",
    "customers:folded",
    "customers:recorded",
]
ROUNDS = int(os.environ.get("STORM_ROUNDS", "2"))


async def test_every_event_is_once_in_its_table_and_document_whatever_is_killed(tmp_path: Path) -> None:
    seed = random.randrange(1 << 32)
    print("the storm of seed", seed)
    chance = random.Random(seed)
    deaths = chance.sample(POINTS, len(POINTS))
    async with Storm.brewing(tmp_path) as storm:
        for number in range(ROUNDS):
            storm.start_driver(f"{deaths[number % len(deaths)]}:{chance.randint(1, 4)}")
            await storm.until_driver_died()
        storm.start_driver()
        await storm.until_more("customers")
        await storm.restart_broker()
        await storm.until_more("customers")
        await storm.restart_database()
        await storm.until_more("customers")
        assert storm.kill_a_python_worker()
        await storm.until_more("warehouse")
        await storm.calm()
        await storm.assert_each_event_once()
