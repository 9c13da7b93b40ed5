"""Rebuilds a projection: all events of its lanes into new documents aside, which then are served at once.

begin a generation aside ─► fold what the lane has had, in chunks ─► lock the live lane ─► fold what is missing ─► swap
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from psycopg import Connection

from tenantry.application import Projection
from tenantry.errors import TenantConflict, TenantryError
from tenantry.event import EVERY_TYPE, type_expression
from tenantry.pipelines.folding import Folding
from tenantry.pipelines.history import History, Span
from tenantry.pipelines.keys import LaneName
from tenantry.pipelines.progress import Done, Progress
from tenantry.pipelines.projecting import fold_events
from tenantry.pipelines.running_job import AWAY, RunningJob, Stopped
from tenantry.postgres.queries import SqlFolder
from tenantry.telemetry import signal

if TYPE_CHECKING:
    from tenantry.pipelines.engine import Engine

SWAPPED = signal(
    "pipelines.lane_rebuilt", "New documents are served for a lane.", "projection", "tenant", "channel", "sequence"
)

SUFFIX: Final = ":rebuild"
CHUNK: Final = 20_000
LANES_AT_ONCE: Final = 4
MOST_SECONDS_LOCKED: Final = 20.0
FAILURES_NAMED: Final = 5

_sql = SqlFolder("tenantry.pipelines")


class Rebuild:
    """Lanes one after the other, a few at a time; what goes wrong with one is told at the end."""

    def __init__(self, engine: Engine, job: RunningJob) -> None:
        self._engine = engine
        self._job = job
        self._name = job.pipeline
        self._history = History(engine)
        self._live = Progress(engine.database, self._name)
        self._aside = Progress(engine.database, self._name + SUFFIX)
        self._failed: dict[str, str] = job.progress.setdefault("failed", {})
        self._past: int = job.progress.get("past", 0)
        """Sequences of lanes that are done."""
        self._total = 0

    def run(self) -> None:
        try:
            projection = _find_projection(self._engine, self._name)
            self._types = None if EVERY_TYPE in projection.types else type_expression(projection.types)
            self._folding = Folding(self._aside.pipeline, projection, self._engine.database_url)
            lanes = self._begin()
            for group in self._groups(lanes):
                self._rebuild(group)
        except (Stopped, *AWAY):
            raise
        except Exception:
            if not self._job.stopping.is_set():
                self._drop(self._aside.load())
            raise
        if self._failed:
            raise TenantConflict(self._describe_failures())

    # -- which lanes ------------------------------------------------------------------------------------------------

    def _begin(self) -> list[LaneName]:
        """Those that are still to be done: the process before may have been killed after any of its steps."""
        progress = self._job.progress
        if "generations" not in progress:
            # Whoever began before us is not going on.
            self._drop({*self._live.load(), *self._aside.load()})
            progress["generations"] = {str(lane): served + 1 for lane, served in self._served().items()}
            self._report()
        wanted = progress["generations"]
        lanes = sorted(
            lane
            for lane, served in self._served().items()
            if served < wanted.get(str(lane), 0) and str(lane) not in self._failed
        )
        with self._connection() as connection:
            connection.execute(_sql.text("begin_rebuild"), self._parameters(lanes))
        for lane, state in self._aside.load().items():
            if state.is_parked:
                self._resume(lane)
        ends = [state.next - 1 for state in self._history.reach(lanes).values() if not isinstance(state, TenantryError)]
        self._total = self._past + sum(ends)
        self._report()
        return lanes

    def _served(self) -> dict[LaneName, int]:
        """The generation that is served, by lane."""
        with self._connection() as connection:
            about = self._parameters() | {"tenant": self._job.tenant_id}
            rows = connection.execute(_sql.text("generations_of_lanes"), about).fetchall()
        return {LaneName(tenant, channel): generation for tenant, channel, generation in rows}

    def _resume(self, lane: LaneName) -> None:
        """The process before had no time to say that it could not be folded; that is found again."""
        about = {"pipeline": self._aside.pipeline, "tenant": lane.tenant, "channel": lane.channel}
        with self._connection() as connection:
            connection.execute(_sql.text("resume_lanes"), about)

    def _groups(self, lanes: Iterable[LaneName]) -> Iterator[list[LaneName]]:
        """Those of a shared stream together, so that it is read once."""
        pools: defaultdict[str, list[LaneName]] = defaultdict(list)
        own = []
        for name in lanes:
            lane = self._engine.roster.lane(name.tenant, name.channel)
            if lane is not None and lane.is_shared:
                pools[lane.stream].append(name)
            else:
                own.append(name)
        yield from (own[start : start + LANES_AT_ONCE] for start in range(0, len(own), LANES_AT_ONCE))
        yield from pools.values()

    # -- a few lanes ------------------------------------------------------------------------------------------------

    def _rebuild(self, group: list[LaneName]) -> None:
        waiting = set(group)
        while waiting:
            ends = self._ends(waiting)
            positions = {lane: state.sequence for lane, state in self._aside.load().items()}
            waiting &= positions.keys()
            spans = {
                lane: Span(positions[lane] + 1, min(positions[lane] + CHUNK, ends[lane]))
                for lane in waiting
                if positions[lane] < ends[lane]
            }
            for lane, reason in self._fold(spans).items():
                self._fail(lane, reason)
                waiting.discard(lane)
            for lane in sorted(waiting):
                if (lane not in spans or spans[lane].last == ends[lane]) and self._swap(lane):
                    waiting.discard(lane)
            self._report()

    def _ends(self, lanes: Iterable[LaneName]) -> dict[LaneName, int]:
        """How far to go: a lane that is parked is served anew only if all that came after is taken, too."""
        live = self._live.load()
        ends = {}
        for lane, reach in self._history.reach(lanes).items():
            if lane not in live:
                self._drop([lane])
            elif isinstance(reach, TenantryError):
                self._fail(lane, str(reach))
            else:
                ends[lane] = max(reach.next - 1, live[lane].sequence)
        return ends

    def _fold(self, spans: Mapping[LaneName, Span]) -> dict[LaneName, str]:
        """Lanes that cannot be folded, and why."""
        if not spans:
            return {}
        failed = {}
        with self._history.read(spans, self._types) as events:
            folded = fold_events(events, self._folding).collect() if events is not None else []
        for row in folded:
            if row.parked_reason is not None:
                lane = LaneName(row.tenant, row.channel)
                failed[lane] = f"{row.parked_reason} (sequence {row.parked_sequence})"
        self._aside.advance({lane: Done(span.last) for lane, span in spans.items() if lane not in failed})
        return failed

    # -- the end ----------------------------------------------------------------------------------------------------

    def _swap(self, lane: LaneName) -> bool:
        """Serve the new documents; whether it is over with this lane.

        Its tasks wait meanwhile, so that what they are ahead can be made up for.
        """
        about = self._parameters() | {"tenant": lane.tenant, "channel": lane.channel}
        with self._connection() as connection:
            live = connection.execute(_sql.text("lock_live_lane"), about).fetchone()
            if live is None:
                return False
            behind = Span(self._aside.load()[lane].sequence + 1, live[0])
            if behind.last - behind.first >= CHUNK:
                return False
            failed = self._fold_locked({lane: behind}) if behind.first <= behind.last else {}
            found = connection.execute(_sql.text("lock_rebuilt_lane"), about).fetchone()
            if failed is None or found is None:
                return False
            if not failed:
                about |= {"sequence": found[0], "generation": found[1]}
                connection.execute(_sql.text("swap_generation"), about)
            self._clear(connection, [lane])
        if failed:
            self._failed |= {str(name): reason for name, reason in failed.items()}
            return True
        self._engine.pipelines[self._name].assignment.advanced({lane: Done(found[0])}, is_recorded=True)
        self._past += found[0]
        SWAPPED.emit(projection=self._name, tenant=lane.tenant, channel=lane.channel, sequence=found[0])
        return True

    def _fold_locked(self, spans: Mapping[LaneName, Span]) -> dict[LaneName, str] | None:
        """None if it has to be tried again: tasks that wait for the lane hold cores, perhaps all that there are."""
        context = self._engine.spark.sparkContext
        group = f"rebuild {self._job.id}"
        context.setJobGroup(group, group, interruptOnCancel=True)
        is_given_up = threading.Event()

        def give_up() -> None:
            is_given_up.set()
            context.cancelJobGroup(group)

        timer = threading.Timer(MOST_SECONDS_LOCKED, give_up)
        timer.start()
        try:
            return self._fold(spans)
        except Exception:
            if is_given_up.is_set():
                return None
            raise
        finally:
            timer.cancel()
            context.setJobGroup("", "")

    def _fail(self, lane: LaneName, reason: str) -> None:
        """Its old documents are served on."""
        self._failed[str(lane)] = reason
        self._drop([lane])

    def _drop(self, lanes: Iterable[LaneName]) -> None:
        """Nothing of what was made aside stays."""
        with self._connection() as connection:
            self._clear(connection, lanes)

    def _clear(self, connection: Connection[Any], lanes: Iterable[LaneName]) -> None:
        about = self._parameters(lanes)
        connection.execute(_sql.text("fold_see_documents"))
        connection.execute(_sql.text("drop_rebuilt_lanes"), about)
        # By itself, for a task may have written documents while its lane was waited for.
        connection.execute(_sql.text("drop_unserved_documents"), about)

    @contextmanager
    def _connection(self) -> Iterator[Connection[Any]]:
        with self._engine.database.connection() as connection, connection.transaction():
            yield connection

    def _parameters(self, lanes: Iterable[LaneName] = ()) -> dict[str, Any]:
        named = list(lanes)
        return {
            "pipeline": self._name,
            "rebuild": self._aside.pipeline,
            "tenants": [lane.tenant for lane in named],
            "channels": [lane.channel for lane in named],
        }

    def _report(self) -> None:
        self._job.progress["past"] = self._past
        done = self._past + sum(state.sequence for state in self._aside.load().values())
        self._total = max(self._total, done)
        self._job.report(done, self._total)

    def _describe_failures(self) -> str:
        named = [f"{lane}: {reason}" for lane, reason in sorted(self._failed.items())]
        more = len(named) - FAILURES_NAMED
        return (
            "; ".join(named[:FAILURES_NAMED]) + (f"; and {more} more lanes" if more > 0 else "") + f". There the old "
            f"documents of projection {self._name} are served on; put right what is wrong, then rebuild again"
        )


def _find_projection(engine: Engine, name: str) -> Projection:
    application = engine.application
    projection = application.projections.get(name) if application else None
    if projection is None:
        is_pipeline = name in engine.pipelines
        raise TenantConflict(
            f"{name} is no projection, and has no documents to rebuild; `tenantry replay` fills its tables again"
            if is_pipeline
            else f"the application that the pipelines run has no projection {name}; declare it, then start them anew"
        )
    return projection
