"""A task in a process of its own that is killed, by itself and with SIGKILL, when it comes to a certain statement."""

from __future__ import annotations

import multiprocessing
import os
import signal
from typing import Any

from tenantry.pipelines import fold_store, folding
from tenantry.postgres.queries import SqlFolder
from tests.pipelines.place import Place, Sent

processes = multiprocessing.get_context("forkserver")
processes.set_forkserver_preload(["tests.pipelines.doomed"])

LAST_STEP = "the end"


def fold_until(url: str, name: str, step: str) -> int | None:
    """Fold four events of two tenants, and die when that statement was about to be run, or the transaction to end."""
    process = processes.Process(target=_run, args=(url, name, step))
    process.start()
    process.join(60)
    return process.exitcode


def _run(url: str, name: str, step: str) -> None:
    fold_store._sql = _Deadly(step)
    whole = folding.Folding._fold

    def fold(self: folding.Folding, *arguments: Any) -> Any:
        done = whole(self, *arguments)
        _die_at(step, LAST_STEP)
        return done

    folding.Folding._fold = fold  # type: ignore[assignment,method-assign]
    Place(url, name).fold([Sent(each, "a", each, tenant) for each in range(1, 5) for tenant in ("acme", "globex")])


class _Deadly(SqlFolder):
    def __init__(self, step: str) -> None:
        super().__init__("tenantry.pipelines")
        self._step = step

    def text(self, name: str) -> str:
        _die_at(self._step, name)
        return super().text(name)


def _die_at(step: str, here: str) -> None:
    if step == here:
        os.kill(os.getpid(), signal.SIGKILL)
