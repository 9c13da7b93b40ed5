"""Tables are looked after while others write to them, and those of tenants that are gone are erased."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pytest

from tenantry.pipelines import maintenance as module
from tenantry.pipelines.erasure import Erasure
from tenantry.pipelines.maintenance import Maintenance
from tenantry.pipelines.table_upkeep import ENOUGH_SMALL, TableUpkeep
from tenantry.tenants.administration import Administration
from tenantry.tenants.spec import TenantSpec
from tenantry.tenants.tenant import Tenant
from tests.pipelines.own_lake import ROWS, OwnLake, is_there, numbered, registered, registered_lake

FOREVER = -1
WEEK = 7 * 86_400
NOWHERE = {
    "AWS_ENDPOINT_URL": "http://127.0.0.1:9",
    "AWS_ACCESS_KEY_ID": "nobody",
    "AWS_SECRET_ACCESS_KEY": "nothing",
    "AWS_REGION": "us-east-1",
    "AWS_ALLOW_HTTP": "true",
    "max_retries": "0",
}

Seen = list[tuple[str, dict[str, Any]]]


@pytest.fixture
def lake(tmp_path: Path) -> OwnLake:
    return OwnLake(str(tmp_path / "lake"))


@pytest.fixture
def own(administration: Administration, tmp_path: Path) -> Iterator[OwnLake]:
    with registered_lake(administration, str(tmp_path / "lake"), NOWHERE) as opened:
        yield opened


def test_small_files_are_put_together_and_no_row_is_lost(lake: OwnLake) -> None:
    place = lake.place("acme")
    for number in range(ENOUGH_SMALL):
        lake.append_numbered(place, number * 10)
    done = TableUpkeep(lake.lake).look_after(place, FOREVER)
    assert done is not None
    assert (done.files_before, done.figures.files, done.figures.rows) == (ENOUGH_SMALL, 1, 10 * ENOUGH_SMALL)
    assert lake.sequences(place) == list(range(10 * ENOUGH_SMALL))
    # The driver's own view of the table is older, and its next batch comes once all the same.
    lake.append_numbered(place, 1000, 1)
    assert lake.sequences(place)[-1] == 1000


def test_a_table_with_few_files_is_left_as_it_is(lake: OwnLake) -> None:
    place = lake.place("acme")
    for number in range(ENOUGH_SMALL - 1):
        lake.append_numbered(place, number * 10)
    version = lake.open(place).version()
    for _ in range(2):
        done = TableUpkeep(lake.lake).look_after(place, WEEK * 52 * 20)
        assert done is not None
        assert (done.figures.version, done.figures.files) == (version, ENOUGH_SMALL - 1)


def test_there_may_be_no_table_yet(lake: OwnLake) -> None:
    assert TableUpkeep(lake.lake).look_after(lake.place("acme"), FOREVER) is None


def test_nobody_has_to_stop_writing_for_it(lake: OwnLake) -> None:
    place, stop, problems = lake.place("acme"), threading.Event(), []
    lake.append_numbered(place, 0)

    def keep_appending() -> None:
        number = 1
        try:
            while not stop.is_set():
                lake.append_numbered(place, number * 10)
                number += 1
        except Exception as problem:
            problems.append(problem)

    writer = threading.Thread(target=keep_appending)
    writer.start()
    upkeep, compacted = TableUpkeep(lake.lake, enough_small=2), 0
    deadline = time.monotonic() + 60
    while compacted < 5 and writer.is_alive() and time.monotonic() < deadline:
        done = upkeep.look_after(place, FOREVER)
        assert done is not None
        compacted += done.figures.files < done.files_before
    stop.set()
    writer.join()
    assert problems == []
    assert compacted >= 5
    found = lake.sequences(place)
    assert found == list(range(len(found)))


def test_rows_past_their_time_go_and_the_others_stay(lake: OwnLake) -> None:
    place, now = lake.place("acme"), datetime.now(UTC)
    lake.append_numbered(place, 0, received=now - timedelta(days=9))
    lake.append(place, [numbered(10, now - timedelta(days=8)), numbered(11, now), {"sequence": 12}])
    done = TableUpkeep(lake.lake).look_after(place, WEEK)
    assert done is not None
    assert done.rows_deleted == 11
    assert lake.sequences(place) == [11, 12]


def test_rows_that_do_not_say_when_they_were_received_are_kept(lake: OwnLake) -> None:
    without = pa.schema([field for field in ROWS if field.name != "received"])
    lake.append(lake.place("acme", "totals"), [{"sequence": 1}], without)
    as_text = pa.schema([field.with_type(pa.string()) if field.name == "received" else field for field in ROWS])
    lake.append(lake.place("acme", "texts"), [{"sequence": 1, "received": "1999"}], as_text)
    for table in ("totals", "texts"):
        done = TableUpkeep(lake.lake).look_after(lake.place("acme", table), 1)
        assert done is not None
        assert done.rows_deleted == 0
        assert lake.sequences(lake.place("acme", table)) == [1]


def test_files_that_no_table_knows_go_when_nobody_can_be_about_to_commit_them(lake: OwnLake) -> None:
    place = lake.place("acme")
    lake.append_numbered(place, 0)
    coming, lost = (Path(place) / lake.write_file(place, [numbered(1)]).name for _ in range(2))
    long_ago = time.time() - WEEK - 3600
    for file in Path(place).glob("*.parquet"):
        if file != coming:
            os.utime(file, (long_ago, long_ago))
    done = TableUpkeep(lake.lake).look_after(place, FOREVER)
    assert done is not None
    assert done.files_removed == 1
    assert coming.exists()
    assert not lost.exists()
    assert lake.sequences(place) == list(range(10))


def test_files_that_were_replaced_go_with_the_time_for_which_versions_are_kept(lake: OwnLake) -> None:
    place = lake.place("acme")
    for number in range(ENOUGH_SMALL):
        lake.append_numbered(place, number * 10)
    kept = TableUpkeep(lake.lake).look_after(place, FOREVER)
    assert kept is not None
    assert kept.files_removed == 0
    swept = TableUpkeep(lake.lake, keep_hours=0).look_after(place, FOREVER)
    assert swept is not None
    assert swept.files_removed == ENOUGH_SMALL
    assert len(list(Path(place).glob("*.parquet"))) == 1
    assert lake.sequences(place) == list(range(10 * ENOUGH_SMALL))


def test_the_log_of_a_table_that_changed_gets_a_checkpoint(lake: OwnLake) -> None:
    place = lake.place("acme")
    lake.append_numbered(place, 0)
    done = TableUpkeep(lake.lake).look_after(place, FOREVER)
    assert done is not None
    log = Path(place) / "_delta_log"
    assert len(list(log.glob("*.checkpoint.parquet"))) == 1
    (log / "_last_checkpoint").unlink()
    TableUpkeep(lake.lake).look_after(place, FOREVER, done.figures.version)
    assert not (log / "_last_checkpoint").exists()


async def test_each_table_has_its_turn_once_an_hour_and_those_that_grew_most_come_first(
    administration: Administration, own: OwnLake, signals: Seen
) -> None:
    for tenant, grown in (("acme", 10), ("globex", 1000), ("initech", 100)):
        own.append_numbered(own.claim(await _tenant(administration, tenant)), 0, 7)
        _execute(
            administration,
            "insert into tenantry.usage values (%s, 'events', 'warehouse', date_trunc('minute', now()), 1, 1, %s, 1)",
            [tenant, grown],
        )
    maintenance = _maintenance(administration, own)
    await maintenance.maintain_due()
    told = [fields for name, fields in signals if name == "pipelines.table_maintained"]
    assert [fields["tenant"] for fields in told] == ["globex", "initech", "acme"]
    assert told[0] | {"bytes": 0, "seconds": 0} == {
        "tenant": "globex",
        "table": "events",
        "files_before": 1,
        "files_after": 1,
        "bytes": 0,
        "rows_deleted": 0,
        "files_removed": 0,
        "seconds": 0,
    }
    assert [row[1:] for row in registered(administration)] == [(7, 1, False)] * 3
    await maintenance.maintain_due()
    assert len([name for name, _ in signals if name == "pipelines.table_maintained"]) == 3
    _execute(administration, "update tenantry.lake_tables set maintained_at = now() - interval '61 minutes'")
    await maintenance.maintain_due()
    assert len([name for name, _ in signals if name == "pipelines.table_maintained"]) == 6
    await maintenance.maintain("acme")
    assert [fields["tenant"] for name, fields in signals if name == "pipelines.table_maintained"][6:] == ["acme"]


async def test_the_tenants_own_retention_is_what_counts(administration: Administration, own: OwnLake) -> None:
    long_ago = datetime.now(UTC) - timedelta(days=3)
    brief = await _tenant(administration, "acme", overrides={"table_retention": "1d"})
    for tenant in (brief, await _tenant(administration, "globex")):
        own.append_numbered(own.claim(tenant), 0, received=long_ago)
    await _maintenance(administration, own).maintain()
    assert own.sequences(own.place("acme")) == []
    assert own.sequences(own.place("globex")) == list(range(10))


async def test_a_store_that_is_away_does_not_keep_the_others(
    administration: Administration, own: OwnLake, signals: Seen
) -> None:
    away = await _tenant(administration, "acme", placement={"lake": "s3://away/lake"})
    own.claim(away)
    own.append_numbered(own.claim(await _tenant(administration, "globex")), 0)
    await _maintenance(administration, own).maintain_due()
    told = {fields["tenant"]: name for name, fields in signals if name.startswith("pipelines.table_maint")}
    assert told == {"acme": "pipelines.table_maintenance_failed", "globex": "pipelines.table_maintained"}


async def test_all_that_a_tenant_had_is_erased_twice_and_the_audit_log_says_so(
    administration: Administration, own: OwnLake, signals: Seen
) -> None:
    tenant, other = await _tenant(administration, "acme"), await _tenant(administration, "globex")
    places = [own.claim(tenant, table) for table in ("events", "totals")]
    for place in (*places, own.claim(other)):
        own.append_numbered(place, 0)
    late = own.write_file(places[0], [numbered(99)])
    erasure = _erasure(administration, own)
    await erasure.work()
    assert all(is_there(place) for place in places)
    await administration.delete("acme", "test")
    await erasure.work()
    assert not Path(places[0]).parent.exists()
    assert [row[3] for row in registered(administration)] == [True, True, False]
    # A task of a batch that was under way.
    late_file = Path(places[0]) / late.name
    late_file.parent.mkdir(parents=True)
    late_file.write_bytes(b"late")
    await erasure.work()
    assert late_file.exists()
    await _erasure(administration, own, again=timedelta(0)).work()
    assert not Path(places[0]).parent.exists()
    assert [row[0] for row in registered(administration)] == [own.place("globex")]
    assert own.sequences(own.place("globex")) == list(range(10))
    entries = [entry for entry in await administration.audit.newest() if entry.act == "tenant.tables_erased"]
    assert [(entry.tenant_id, entry.after) for entry in entries] == [("acme", {"locations": places})]
    assert [fields for name, fields in signals if name == "pipelines.tables_erased"] == [
        {"tenant": "acme", "locations": places}
    ]
    await administration.audit.verify()


async def test_a_new_tenant_of_the_same_name_keeps_its_rows(administration: Administration, own: OwnLake) -> None:
    own.append_numbered(own.claim(await _tenant(administration, "acme")), 0)
    await administration.delete("acme", "test")
    await _erasure(administration, own).work()
    new = await _tenant(administration, "acme")
    own.append_numbered(own.claim(new), 100)
    await _erasure(administration, own, again=timedelta(0)).work()
    assert own.sequences(own.place("acme")) == list(range(100, 110))
    assert [row[3] for row in registered(administration)] == [False]


async def test_a_new_tenant_of_the_same_name_starts_anew_when_the_old_one_is_forgotten(
    administration: Administration, own: OwnLake
) -> None:
    place = own.claim(await _tenant(administration, "acme"))
    own.append_numbered(place, 0)
    await administration.delete("acme", "test")
    for _ in range(2):
        await _erasure(administration, own, again=timedelta(0)).work()
    assert registered(administration) == []
    own.claim(await _tenant(administration, "acme"))
    own.append_numbered(place, 100)
    assert own.sequences(place) == list(range(100, 110))


async def test_what_a_new_tenant_of_the_same_name_has_erased_is_told_once(
    administration: Administration, own: OwnLake
) -> None:
    places = [own.claim(await _tenant(administration, "acme"), table) for table in ("events", "totals")]
    own.append_numbered(places[0], 0)
    await administration.delete("acme", "test")
    own.claim(await _tenant(administration, "acme"))
    own.append_numbered(places[0], 100)
    for _ in range(2):
        await _erasure(administration, own).work()
    entries = [entry for entry in await administration.audit.newest() if entry.act == "tenant.tables_erased"]
    assert [entry.after for entry in entries] == [{"locations": places[:1]}, {"locations": places[1:]}]
    assert own.sequences(places[0]) == list(range(100, 110))


async def test_what_cannot_be_erased_now_is_told_and_kept_in_mind(
    administration: Administration, own: OwnLake, signals: Seen
) -> None:
    away = await _tenant(administration, "acme", placement={"lake": "s3://away/lake"})
    here = await _tenant(administration, "globex")
    own.claim(away)
    own.append_numbered(own.claim(here), 0)
    for tenant in ("acme", "globex"):
        await administration.delete(tenant, "test")
    erasure = _erasure(administration, own)
    await erasure.work()
    await erasure.work()
    failed = [fields["location"] for name, fields in signals if name == "pipelines.table_erasure_failed"]
    assert failed == ["s3://away/lake/tenant=acme/events"]
    assert [row[3] for row in registered(administration)] == [True, False]
    assert not is_there(own.place("globex"))


async def test_the_service_erases_within_seconds_and_ends_when_it_is_told(
    administration: Administration, own: OwnLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "ERASURE_SECONDS", 0.01)
    own.append_numbered(own.claim(await _tenant(administration, "acme")), 0)
    maintenance = _maintenance(administration, own)
    await maintenance.start()
    running = asyncio.ensure_future(maintenance.run())
    await administration.delete("acme", "test")
    while is_there(own.place("acme")):
        assert not running.done()
        await asyncio.sleep(0.01)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    await maintenance.stop()


async def _tenant(administration: Administration, id: str, **wanted: Any) -> Tenant:
    tenant, _ = await administration.put(TenantSpec(id=id, tier="pooled", **wanted), "test")
    return tenant


def _maintenance(administration: Administration, own: OwnLake) -> Maintenance:
    return Maintenance(administration.pool, administration.registry, administration.audit, own.lake)


def _erasure(administration: Administration, own: OwnLake, again: timedelta = timedelta(minutes=1)) -> Erasure:
    tables = _maintenance(administration, own).tables
    return Erasure(administration.pool, tables, administration.audit, own.lake, again=again)


def _execute(administration: Administration, statement: str, parameters: Any = None) -> None:
    with psycopg.connect(str(administration.pool.conninfo)) as connection:
        connection.execute(statement.encode(), parameters)
