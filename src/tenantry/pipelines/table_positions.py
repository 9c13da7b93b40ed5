"""How far tables are, as the driver remembers it and, where it does not, as they say themselves."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from tenantry.errors import TableConflict
from tenantry.pipelines.assignment import Assignment
from tenantry.pipelines.keys import LaneName
from tenantry.pipelines.progress import STEP, Done
from tenantry.pipelines.spark_errors import find_cause
from tenantry.pipelines.tables import Commit, Mark, Tables


class TablePositions:
    """Of the tables of one pipeline, by lane.

    A commit is marked with the lane's own sequence, which goes on through moves: nothing is repeated, whichever query
    reads it.
    """

    def __init__(self, tables: Tables, assignment: Assignment) -> None:
        self._tables = tables
        self._assignment = assignment
        self._versions: dict[str, int] = {}

    def find(self, lanes: Iterable[LaneName], locations: Mapping[LaneName, str]) -> dict[LaneName, int]:
        """The last sequence applied to each lane, without lanes whose table cannot be opened: those are set aside."""
        names = {lane: self._name(lane) for lane in lanes}
        unknown = {locations[lane]: name for lane, name in names.items() if name not in self._versions}
        versions, problems = self._tables.versions_of(unknown)
        self._versions |= {unknown[place]: version for place, version in versions.items()}
        found = {}
        for lane, name in names.items():
            if name in self._versions:
                found[lane] = max(self._versions[name], self._assignment.position(lane))
            elif not self._assignment.is_parked(lane):
                self._assignment.set_aside(lane, find_cause(problems[locations[lane]]).reason)
        return found

    def mark(self, lane: LaneName, sequence: int) -> Mark:
        """For a commit; until it is confirmed, what the table has is not known."""
        name = self._name(lane)
        return Mark(name, sequence, self._versions.pop(name, None))

    def confirm(self, lane: LaneName, done: Done, *, has_files: bool) -> None:
        if has_files:
            self._versions[self._name(lane)] = done.sequence

    def _name(self, lane: LaneName) -> str:
        return f"{self._assignment.progress.pipeline}/{self._assignment.id_of(lane)}"


def finish_batch(
    tables: Tables,
    assignment: Assignment,
    positions: TablePositions,
    commits: Mapping[LaneName, Commit],
    done: Mapping[LaneName, Done],
) -> set[LaneName]:
    """Commit, and pass what was committed. A lane whose table refuses is set aside, and the others go on."""
    problems = tables.commit_all(commits.values())
    STEP.emit(pipeline=assignment.progress.pipeline, step="committed")
    refused = {lane: problems[commit.location] for lane, commit in commits.items() if commit.location in problems}
    for lane, problem in refused.items():
        if isinstance(problem, TableConflict):
            # What we believe of tables is not so; from the start, then.
            raise problem
        assignment.set_aside(lane, find_cause(problem).reason)
    passed = {lane: each for lane, each in done.items() if lane not in refused}
    assignment.advanced(passed)
    for lane, each in passed.items():
        positions.confirm(lane, each, has_files=lane in commits)
    return set(refused)
