"""What tasks of a projection make of events, whatever happens to them."""

from __future__ import annotations

import os
import pickle
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict

from tenantry.application import Event
from tenantry.errors import DocumentConflict
from tenantry.pipelines import fold_store
from tenantry.pipelines.folding import FOLDED, FOLDED_DDL, Folding
from tenantry.pipelines.task_database import transact
from tenantry.testing import TestPlatform
from tests.pipelines.conftest import TENANTS
from tests.pipelines.doomed import fold_until
from tests.pipelines.place import SIZE, Place, Sent, append, plain_fold
from tests.processes import wait_for

SUBJECTS = st.sampled_from(["a", "b", "c", "Ünï cödé/1", None])
DATA = st.one_of(
    st.just("delete"), st.integers(-1000, 1000), st.text(st.characters(exclude_characters="\0", codec="utf-8"))
)

TASK_SESSIONS = "from pg_stat_activity where datname = current_database() and application_name = 'tenantry-task'"


def numbered(count: int, tenant: str = "acme", subject: str = "a") -> list[Sent]:
    return [Sent(sequence, subject, sequence, tenant) for sequence in range(1, count + 1)]


# Documents are what the events say


def test_documents_are_the_fold_of_the_events_however_they_come(place: Place) -> None:
    """In any batches, each repeated any number of times, with the lanes of several tenants in one task."""

    @settings(max_examples=40, suppress_health_check=list(HealthCheck))
    @given(
        sent=st.lists(st.tuples(st.sampled_from(TENANTS), SUBJECTS, DATA, st.integers(1, 3)), max_size=30),
        cuts=st.lists(st.tuples(st.integers(0, 30), st.integers(1, 3)), max_size=5),
        split=st.integers(1, 7),
    )
    def holds(sent: list[tuple[str, str | None, Any, int]], cuts: list[tuple[int, int]], split: int) -> None:
        here = Place(place.url)
        here.open_lanes(*TENANTS)
        events, sequence = [], 0
        for tenant, subject, data, gap in sent:
            sequence += gap
            events.append(Sent(sequence, subject, data, tenant))
        start = 0
        for end, times in [*sorted(cuts), (len(events), 1)]:
            for _ in range(times):
                # A batch that is repeated after a crash may also begin where an earlier one did.
                batch = events[max(0, start - times) : end]
                here.fold(*(batch[at : at + split] for at in range(0, len(batch), split)))
            start = end
        for tenant in TENANTS:
            own = [each for each in events if each.tenant == tenant]
            assert here.documents(tenant) == plain_fold(own)
            assert here.lane(tenant)["sequence"] == (own[-1].sequence if own else 0)
        assert sum(row["events"] for row in here.usage()) == len(events)

    holds()


def test_a_repeated_batch_changes_nothing(place: Place) -> None:
    place.open_lanes("acme")
    first = place.fold(numbered(3))["acme"]
    assert (first["sequence"], first["events"], first["bytes"]) == (3, 3, 3 * SIZE)
    before = place.rows("documents", "projection"), place.usage()
    again = place.fold(numbered(3))["acme"]
    assert (again["sequence"], again["events"], again["bytes"], again["parked_sequence"]) == (3, 0, 0, None)
    assert (place.rows("documents", "projection"), place.usage()) == before


def test_a_deleted_document_starts_again_and_keeps_its_sequence_meanwhile(place: Place) -> None:
    place.open_lanes("acme")
    place.fold([Sent(1, "a", 1), Sent(2, "a", "delete")])
    assert place.documents() == {"a": None}
    assert [row["sequence"] for row in place.rows("documents", "projection")] == [2]
    place.fold([Sent(3, "a", 3)])
    assert place.documents() == {"a": {"seen": [[3, 3]]}}


def test_events_of_no_document_move_the_lane_all_the_same(place: Place) -> None:
    place.open_lanes("acme")
    assert place.fold([Sent(4, None)])["acme"]["sequence"] == 4
    assert place.documents() == {}
    assert place.lane()["sequence"] == 4


def test_evolve_sees_the_event_as_it_was_sent(place: Place) -> None:
    place.open_lanes("acme")

    def tell(_: Any, event: Event) -> Any:
        return {name: getattr(event, name) for name in event.__struct_fields__}

    place.fold([Sent(7, "a", {"x": [1, None, "ü"]})], by=place.projection(tell))
    assert place.documents()["a"] == {
        "tenant": "acme",
        "channel": "events",
        "type": "thing.changed",
        "id": "event-7",
        "source": "/test",
        "subject": "a",
        "time": "2026-01-01T12:00:00Z",
        "data": {"x": [1, None, "ü"]},
        "trace": None,
        "sequence": 7,
    }


def test_a_rebuild_makes_the_next_generation_beside_the_one_that_is_served(place: Place) -> None:
    place.open_lanes("acme")
    place.fold(numbered(2))
    place.open_lanes("acme", pipeline=f"{place.name}@2", generation=2)
    place.fold(numbered(3), pipeline=f"{place.name}@2")
    assert [len(place.documents(generation=each)["a"]["seen"]) for each in (1, 2)] == [2, 3]
    assert place.lane()["sequence"] == 2


def test_documents_may_be_more_than_fit_into_one_statement(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fold_store, "LARGEST_WRITE", 100)
    place.open_lanes("acme", "globex")
    place.fold([Sent(each, f"{each}", "x" * 40, tenant) for each in range(1, 20) for tenant in ("acme", "globex")])
    assert len(place.documents("acme")) == len(place.documents("globex")) == 19


def test_what_it_cost_is_noted_by_the_minute_and_divided_by_bytes(place: Place) -> None:
    place.open_lanes("acme", "globex")
    place.fold(numbered(3) + numbered(1, "globex"))
    acme, globex = place.usage()
    assert (acme["events"], acme["bytes"], acme["stored_bytes"]) == (3, 3 * SIZE, 0)
    assert (globex["events"], globex["bytes"]) == (1, SIZE)
    assert acme["task_seconds"] == pytest.approx(3 * globex["task_seconds"])
    assert acme["task_seconds"] > 0
    assert acme["minute"].second == acme["minute"].microsecond == 0


def test_a_lane_without_a_row_and_one_that_is_parked_are_left_out(place: Place) -> None:
    place.open_lanes("acme", "globex")
    place.execute(
        "update tenantry.pipeline_lanes set parked_at = now(), parked_reason = 'x' "
        "where pipeline = %s and tenant_id = %s",
        [place.name, "globex"],
    )
    folded = place.fold(numbered(1) + numbered(1, "globex") + numbered(1, "initech") + numbered(1, "nobody"))
    assert set(folded) == {"acme"}
    assert place.documents("globex") == place.documents("initech") == {}
    assert place.lane("globex")["sequence"] == 0


def test_without_events_nobody_is_asked(place: Place) -> None:
    folding = Folding(place.name, place.projection(), "postgresql://127.0.0.1:1/nowhere")
    assert list(folding(iter([]))) == []


# What cannot be folded parks its lane, and no other


def fail_at(sequence: int, problem: Callable[[], BaseException]) -> Callable[[Any, Event], Any]:
    def evolve(state: Any, event: Event) -> Any:
        state = append(state, event)
        if event.sequence == sequence and event.tenant == "acme":
            raise problem()
        return state

    return evolve


@pytest.mark.parametrize(
    "problem", [lambda: ValueError("no such thing\nreally"), RecursionError, MemoryError, lambda: KeyError("x")]
)
def test_a_raise_parks_its_lane_at_that_event_until_it_is_put_right(
    place: Place, problem: Callable[[], BaseException]
) -> None:
    place.open_lanes("acme", "globex")
    place.fold(numbered(1))
    events = [*numbered(5), *numbered(5, "globex")]
    parked = place.fold(events, by=place.projection(fail_at(3, problem)))
    assert [parked["acme"][each] for each in ("sequence", "events", "parked_sequence")] == [2, 1, 3]
    assert [parked["globex"][each] for each in ("sequence", "events", "parked_sequence")] == [5, 5, None]
    assert place.documents("globex") == plain_fold(numbered(5))
    # The event that failed had changed the state in place.
    assert place.documents("acme") == plain_fold(numbered(2))
    lane = place.lane()
    assert {name: lane[name] for name in ("parked_sequence", "parked_reason", "parked_traceback")} == {
        name: parked["acme"][name] for name in ("parked_sequence", "parked_reason", "parked_traceback")
    }
    assert lane["parked_reason"].startswith(type(problem()).__name__)
    assert "\n" not in lane["parked_reason"]

    assert "acme" not in place.fold(events)
    assert place.documents("acme") == plain_fold(numbered(2))
    place.resume()
    place.fold(events)
    assert place.documents("acme") == place.documents("globex") == plain_fold(numbered(5))


def test_what_is_told_of_a_raise_names_the_applications_code_alone(place: Place) -> None:
    place.open_lanes("acme")
    told = place.fold(numbered(2), by=place.projection(fail_at(2, lambda: ValueError("x" * 1000 + "\0\ud800"))))["acme"]
    assert told["parked_reason"] == f"ValueError: {'x' * 488}"
    files = re.findall(r'File "(.+?)"', told["parked_traceback"])
    assert files == [__file__]
    assert "\\x00\\ud800" in told["parked_traceback"]


def test_a_key_that_cannot_be_had_parks_the_lane(place: Place) -> None:
    for key, reason in (
        (lambda event: event.data["missing"], "TypeError"),
        (lambda event: [], "TypeError: expected the key"),
        (lambda event: "\ud800", "UnicodeEncodeError"),
        (lambda event: "x\0", "ValueError: expected the key"),
        (lambda event: "x" * 5000, "ValueError: expected the key"),
    ):
        here = Place(place.url)
        here.open_lanes("acme", "globex")

        def choose(event: Event, key: Callable[[Event], Any] = key) -> Any:
            return key(event) if event.tenant == "acme" and event.sequence == 2 else event.subject

        told = here.fold(numbered(3) + numbered(3, "globex"), by=here.projection(key=choose))
        assert told["acme"]["parked_reason"].startswith(reason)
        assert told["acme"]["parked_sequence"] == 2
        assert here.documents("acme") == plain_fold(numbered(1))
        assert here.documents("globex") == plain_fold(numbered(3))


def test_a_state_that_is_not_json_parks_the_lane_at_the_event_that_made_it_so(place: Place) -> None:
    for wrong in (object(), "\ud800", {1j: 1}, fold_store):
        here = Place(place.url)
        here.open_lanes("acme", "globex")

        def spoil(state: Any, event: Event, wrong: Any = wrong) -> Any:
            state = append(state, event)
            if event.sequence == 3 and event.tenant == "acme":
                state["wrong"] = wrong
            return state

        told = here.fold(numbered(5) + numbered(5, "globex"), by=here.projection(spoil))
        assert [told["acme"][each] for each in ("sequence", "parked_sequence")] == [2, 3]
        assert here.documents("acme") == plain_fold(numbered(2))
        assert here.documents("globex") == plain_fold(numbered(5))


def test_an_event_that_became_part_of_a_state_is_as_it_was_when_it_is_folded_again(place: Place) -> None:
    place.open_lanes("acme")

    def evolve(state: Any, event: Event) -> Any:
        state.append(event.data)
        state[0]["count"] += 1
        if event.sequence == 3:
            raise ValueError
        return state

    events = [Sent(each, "a", {"count": 0}) for each in (1, 2, 3)]
    place.fold(events, by=place.projection(evolve, initial=list))
    assert place.documents() == {"a": [{"count": 2}, {"count": 0}]}


def test_an_interrupt_is_nobodys_parking(place: Place) -> None:
    place.open_lanes("acme")
    with pytest.raises(KeyboardInterrupt):
        place.fold(numbered(3), by=place.projection(fail_at(2, KeyboardInterrupt)))
    assert place.documents() == {}
    assert (place.lane()["sequence"], place.lane()["parked_at"]) == (0, None)


@pytest.mark.parametrize("text", ["\0", "\0" * 3])
def test_what_postgresql_refuses_parks_only_its_lane(place: Place, text: str) -> None:
    place.open_lanes(*TENANTS)
    place.fold(numbered(2))
    wrong = [*numbered(6), Sent(7, "b", 7), Sent(8, "b", text), *(Sent(each, "a", each) for each in range(9, 30))]
    told = place.fold(wrong + numbered(4, "globex") + numbered(4, "initech"))
    assert told["acme"]["parked_sequence"] == 8
    assert "\\u0000" in told["acme"]["parked_reason"]
    assert (told["acme"]["sequence"], told["acme"]["events"]) == (7, 5)
    assert place.documents("acme") == plain_fold(wrong[:7])
    for tenant in ("globex", "initech"):
        assert place.documents(tenant) == plain_fold(numbered(4))


# Somebody else


def test_a_document_that_somebody_else_changed_is_not_overwritten(place: Place) -> None:
    place.open_lanes("acme", "globex")
    place.fold([Sent(1, "a", 1), Sent(2, "b", 2)])
    did_meddle = threading.Event()

    def meddled(state: Any, event: Event) -> Any:
        if event.sequence == 5 and not did_meddle.is_set():
            did_meddle.set()
            place.execute(
                "update tenantry.documents set document = '{}', sequence = 3 where projection = %s and id = 'b'",
                [place.name],
            )
        return append(state, event)

    told = place.fold(
        [Sent(3, "a", 3), Sent(4, "b", 4), Sent(5, "a", 5), *numbered(3, "globex")], by=place.projection(meddled)
    )
    assert told["acme"]["parked_sequence"] == 4
    assert told["acme"]["parked_reason"].startswith(DocumentConflict.__name__)
    assert "'b'" in told["acme"]["parked_reason"]
    assert "at sequence 2, it is at sequence 3" in told["acme"]["parked_reason"]
    assert place.documents("acme") == {"a": {"seen": [[1, 1], [3, 3]]}, "b": {}}
    assert place.documents("globex") == plain_fold(numbered(3))


def test_a_document_that_somebody_else_made_is_not_overwritten(place: Place) -> None:
    place.open_lanes("acme")

    def meddled(state: Any, event: Event) -> Any:
        place.execute(
            "insert into tenantry.documents values ('acme', %s, 1, 'a', 'events', '{}', 1) on conflict do nothing",
            [place.name],
        )
        return append(state, event)

    assert "not to be there" in place.fold(numbered(2), by=place.projection(meddled))["acme"]["parked_reason"]
    assert place.documents("acme") == {"a": {}}


def test_no_event_is_applied_to_a_document_that_has_it_already(place: Place) -> None:
    place.open_lanes("acme")
    place.fold(numbered(3))
    place.execute("update tenantry.pipeline_lanes set sequence = 1 where pipeline = %s", [place.name])
    told = place.fold(numbered(4))["acme"]
    assert (told["sequence"], told["parked_sequence"]) == (1, 2)
    assert "it is at 3 of events" in told["parked_reason"]
    assert place.documents() == plain_fold(numbered(3))


def test_two_tasks_with_the_same_events_apply_them_once(place: Place) -> None:
    place.open_lanes("acme")
    tasks = [threading.Thread(target=place.fold, args=[numbered(200)]) for _ in range(4)]
    for task in tasks:
        task.start()
    for task in tasks:
        task.join()
    assert place.documents() == plain_fold(numbered(200))
    assert [row["events"] for row in place.usage()] == [200]


def test_a_tenant_that_is_deleted_meanwhile_takes_its_documents_along(place: Place) -> None:
    place.open_lanes("acme", "globex")
    began, deleting = (
        threading.Event(),
        threading.Thread(target=place.execute, args=["delete from tenantry.tenants where id = 'acme'"]),
    )

    def evolve(state: Any, event: Event) -> Any:
        if not began.is_set():
            began.set()
            deleting.start()
            wait_for(lambda: place.execute("select from pg_locks where not granted") > 0)
        return append(state, event)

    assert set(place.fold(numbered(2) + numbered(2, "globex"), by=place.projection(evolve))) == {"acme", "globex"}
    deleting.join()
    assert place.documents("acme") == {}
    assert place.documents("globex") == plain_fold(numbered(2))
    assert set(place.fold(numbered(3) + numbered(3, "globex"))) == {"globex"}


# Failures


def test_a_lost_connection_is_replaced_and_the_transaction_done_again_as_a_whole(place: Place) -> None:
    place.open_lanes("acme", "globex")
    place.fold(numbered(1))
    lost: list[int] = []

    def lose(state: Any, event: Event) -> Any:
        if len(lost) < 3 and event.sequence == 2 and event.tenant == "acme":
            lost.append(place.execute(f"select pg_terminate_backend(pid) {TASK_SESSIONS}"))
        return append(state, event)

    place.fold(numbered(3) + numbered(3, "globex"), by=place.projection(lose))
    assert lost == [1, 1, 1]
    assert place.documents("acme") == place.documents("globex") == plain_fold(numbered(3))
    assert [row["events"] for row in place.usage()] == [3, 3]


def test_a_task_waits_for_a_database_that_lets_nobody_in(place: Place, platform: TestPlatform) -> None:
    place.open_lanes("acme")
    place.fold(numbered(1))
    database = str(conninfo_to_dict(place.url)["dbname"])
    name = sql.Identifier(database)
    permit = sql.SQL("alter database {} with allow_connections {}")
    with psycopg.connect(platform.postgres.address("postgres", "postgres"), autocommit=True) as admin:
        admin.execute(permit.format(name, sql.SQL("false")))
        admin.execute("select pg_terminate_backend(pid) from pg_stat_activity where datname = %s", [database])
        with ThreadPoolExecutor() as threads:
            task = threads.submit(place.fold, numbered(3))
            with pytest.raises(TimeoutError):
                task.result(1)
            admin.execute(permit.format(name, sql.SQL("true")))
            task.result()
    assert place.documents() == plain_fold(numbered(3))


def test_a_database_that_stays_away_fails_the_task_when_patience_ends() -> None:
    with pytest.raises(psycopg.OperationalError, match="refused"):
        transact("postgresql://127.0.0.1:1/nowhere", lambda connection: None, patience=0.2)


def test_a_task_uses_the_connection_that_the_one_before_it_has_left(place: Place) -> None:
    place.open_lanes("acme")
    seen = set()

    def look(state: Any, event: Event) -> Any:
        with psycopg.connect(place.url) as connection:
            seen.update(connection.execute(f"select pid {TASK_SESSIONS}".encode()).fetchall())
        return append(state, event)

    for count in (1, 2, 3):
        place.fold(numbered(count), by=place.projection(look))
    assert len(seen) == 1


@pytest.mark.parametrize(
    "step", ["fold_load_documents", "fold_write_documents", "fold_advance_lanes", "fold_add_usage", "the end"]
)
def test_a_task_that_is_killed_leaves_nothing_half_done(place: Place, step: str) -> None:
    place.open_lanes("acme", "globex")
    place.fold(numbered(1))
    before = place.rows("documents", "projection"), place.lane("acme"), place.usage()
    assert fold_until(place.url, place.name, step) == -signal.SIGKILL
    assert (place.rows("documents", "projection"), place.lane("acme"), place.usage()) == before
    place.fold(numbered(4) + numbered(4, "globex"))
    assert place.documents("acme") == place.documents("globex") == plain_fold(numbered(4))


# As Spark has it


def test_it_travels_without_showing_the_password_and_needs_no_spark(place: Place) -> None:
    folding = Folding("things", place.projection(), "postgresql://u:secret@host/db")
    assert "secret" not in repr(folding)
    assert pickle.loads(pickle.dumps(folding)) == folding
    assert re.findall(r"(\w+) \w+", FOLDED_DDL) == FOLDED.names
    check = (
        "import sys, tenantry.pipelines.folding; print(*{'pyspark', 'pandas', 'fastapi', 'nats'} & set(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", check], capture_output=True, text=True, check=True, env=dict(os.environ)
    )
    assert done.stdout.strip() == ""
