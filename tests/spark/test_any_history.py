"""Whatever happens to the streams and the query, each message is read once and in order, or is known to be lost."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count

import pytest
from hypothesis import HealthCheck, example, given, note, settings
from hypothesis import strategies as st
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from pyspark_nats import DataLost
from tests.processes import wait_for
from tests.spark.engine import Query, Row
from tests.spark.jet import Jet

NAMES = ("A", "B", "C")
EXPIRE_AT_ONCE = 100_000_000

streams = st.sampled_from(NAMES)
actions = st.lists(
    st.one_of(
        st.tuples(st.just("publish"), streams, st.integers(1, 40)),
        st.tuples(st.just("purge"), streams, st.integers(0, 10)),
        st.tuples(st.just("drop"), streams, st.integers(0, 50)),
        st.tuples(st.just("expire"), streams, st.just(0)),
        st.tuples(st.just("remake"), streams, st.just(0)),
        st.tuples(st.just("delete"), streams, st.just(0)),
        st.tuples(st.just("trigger"), st.just(""), st.sampled_from([0, 1, 2, 3, 7, 20, 1000])),
        st.tuples(st.just("restart"), st.just(""), st.integers(1, 4)),
        st.tuples(st.just("again"), st.just(""), st.integers(0, 100)),
    ),
    max_size=25,
)
runs = count()


class Model:
    """What a query over the streams must have seen."""

    def __init__(self, jet: Jet, prefix: str) -> None:
        self.jet = jet
        self.prefix = prefix
        self.born = count(1)
        self.alive: dict[str, int] = {}
        self.present: dict[tuple[str, int], dict[int, bytes]] = {}
        """What each stream has, by its name and which one of that name it is."""
        self.published: dict[bytes, tuple[str, int, int]] = {}
        self.seen: list[bytes] = []
        self.batches: list[list[Row]] = []
        self.payloads = count(1)
        for name in NAMES[:2]:
            self.make(name)

    def full(self, name: str) -> str:
        return f"{self.prefix}_{name}"

    def make(self, name: str) -> None:
        # In memory: in files, a stream that is deleted soon after one of its name may leave its messages to the next.
        # https://github.com/nats-io/nats-server/blob/main/server/filestore.go, Delete
        self.jet.make(self.full(name), storage="memory")
        self.alive[name] = next(self.born)
        self.present[name, self.alive[name]] = {}

    def of(self, name: str) -> dict[int, bytes]:
        return self.present[name, self.alive[name]]

    def publish(self, name: str, amount: int) -> None:
        if name not in self.alive:
            self.make(name)
        payloads = [b"%d" % next(self.payloads) for _ in range(amount)]
        first = self.jet.state(self.full(name))["last_seq"] + 1
        self.jet.publish(self.full(name), *payloads)
        for sequence, payload in enumerate(payloads, first):
            self.of(name)[sequence] = payload
            self.published[payload] = name, self.alive[name], sequence

    def purge(self, name: str, keep: int) -> None:
        if name in self.alive:
            self.jet.purge(self.full(name), **({"keep": keep} if keep else {}))
            for sequence in sorted(self.of(name))[: max(0, len(self.of(name)) - keep)]:
                del self.of(name)[sequence]

    def drop(self, name: str, which: int) -> None:
        if self.alive.get(name) and self.of(name):
            sequence = sorted(self.of(name))[which % len(self.of(name))]
            self.jet.drop(self.full(name), sequence)
            del self.of(name)[sequence]

    def expire(self, name: str, _: int) -> None:
        if name in self.alive:
            stream = self.full(name)
            config = {"name": stream, "subjects": [f"{stream}.>"], "allow_direct": True, "storage": "memory"}
            self.jet.ask(
                f"STREAM.UPDATE.{stream}", config | {"max_age": EXPIRE_AT_ONCE, "duplicate_window": EXPIRE_AT_ONCE}
            )
            wait_for(lambda: self.jet.state(stream)["messages"] == 0)
            self.jet.ask(f"STREAM.UPDATE.{stream}", config | {"max_age": 0})
            self.of(name).clear()

    def delete(self, name: str, _: int) -> None:
        if self.alive.pop(name, None):
            self.jet.delete(self.full(name))

    def remake(self, name: str, _: int) -> None:
        self.delete(name, _)
        self.make(name)


class Run:
    """A query beside its model."""

    def __init__(self, jet: Jet) -> None:
        self.model = Model(jet, f"RUN{next(runs)}")
        self.query = Query(jet.url, streams=f"{self.model.prefix}_*", failOnDataLoss="false")

    def do(self, action: str, stream: str, number: int) -> None:
        handler: Callable[..., None] = getattr(self, action, None) or getattr(self.model, action)
        handler(stream, number) if stream else handler(number)

    def trigger(self, limit: int) -> None:
        rows = self.query.trigger(ReadMaxRows(limit) if limit else ReadAllAvailable())
        assert not limit or len(rows) <= limit
        if self.query.planned:
            self.model.batches.append(rows)
        self.model.seen += [row.data for row in rows]
        for row in rows:
            assert self.model.of(row.stream.rpartition("_")[2])[row.sequence] == row.data

    def restart(self, tasks: int) -> None:
        self.query.restart(minPartitions=str(tasks))

    def again(self, which: int) -> None:
        """A batch that is read again has the same rows, but for those that are gone since."""
        if not self.model.batches:
            return
        number = which % len(self.model.batches)
        there = {payload for present in self.alive_now() for payload in present.values()}
        self.query.restart()
        assert self.query.read(number) == [row for row in self.model.batches[number] if row.data in there]

    def alive_now(self) -> list[dict[int, bytes]]:
        return [self.model.of(name) for name in self.model.alive]

    def check(self) -> None:
        while self.query.planned or not self.query.log:
            self.trigger(1000)
        model = self.model
        assert len(set(model.seen)) == len(model.seen), "something was read twice"
        there = {payload for present in self.alive_now() for payload in present.values()}
        assert there <= set(model.seen), "something was not read"
        for name in NAMES:
            places = [model.published[payload][1:] for payload in model.seen if model.published[payload][0] == name]
            assert places == sorted(places), f"{name} was read out of order"


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(actions)
@example([("publish", "A", 5), ("trigger", "", 2), ("remake", "A", 0), ("publish", "A", 9), ("restart", "", 2)])
@example([("publish", "A", 1), ("trigger", "", 0), ("remake", "A", 0), ("publish", "A", 1), ("again", "", 0)])
@example([("publish", "C", 5), ("trigger", "", 3), ("expire", "C", 0), ("publish", "C", 1), ("again", "", 0)])
def test_each_message_is_read_once_and_in_order_through_any_history(
    jet: Jet, actions: list[tuple[str, str, int]]
) -> None:
    note(str(actions))
    run = Run(jet)
    run.query.planned = False
    try:
        for action in actions:
            run.do(*action)
        run.trigger(0)
        run.check()
    finally:
        for name in run.model.alive:
            jet.delete(run.model.full(name))


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(st.integers(0, 30), st.integers(0, 30), st.lists(st.integers(1, 40), max_size=5), st.integers(0, 30))
def test_a_loss_is_told_if_and_only_if_something_was_lost(
    jet: Jet, before: int, read: int, dropped: list[int], keep: int
) -> None:
    """With failOnDataLoss: what the query has still to read must all be there."""
    name = f"LOSS{next(runs)}"
    jet.make(name, storage="memory")
    query = Query(jet.url, streams=name, startingOffsets="latest")
    query.trigger()
    jet.fill(name, before)
    done = len(query.trigger(ReadMaxRows(read))) if read else 0
    jet.fill(name, 10)
    there = set(range(1, before + 11))
    if keep:
        jet.purge(name, keep=keep)
        there = set(sorted(there)[-keep:])
    for sequence in set(dropped) & there:
        jet.drop(name, sequence)
        there.discard(sequence)
    expected = set(range(done + 1, before + 11))
    if expected <= there:
        assert {row.sequence for row in query.trigger()} == expected
    else:
        with pytest.raises(DataLost, match=rf"stream {name} no longer has sequences? {min(expected - there)}"):
            query.trigger()
    jet.delete(name)
