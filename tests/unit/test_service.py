"""The lifecycle: started in order, drained in the opposite order, forced by a second signal."""

from __future__ import annotations

import asyncio
import os
import signal
from typing import Any

import pytest

from tenantry.service import Forced, run_services


class Recorder:
    """A service that notes what happens to it."""

    def __init__(self, name: str, log: list[str], **behaviour: Any) -> None:
        self.name = name
        self._log = log
        self._behaviour = behaviour

    async def start(self) -> None:
        self._log.append(f"start {self.name}")
        if self._behaviour.get("start_fails"):
            raise RuntimeError(f"{self.name} cannot start")

    async def run(self) -> None:
        if ends := self._behaviour.get("ends"):
            if isinstance(ends, Exception):
                raise ends
            return
        if number := self._behaviour.get("signals"):
            os.kill(os.getpid(), number)
        await asyncio.Event().wait()

    async def stop(self) -> None:
        self._log.append(f"stop {self.name}")
        if self._behaviour.get("stop_hangs"):
            os.kill(os.getpid(), signal.SIGTERM)
            await asyncio.Event().wait()
        if self._behaviour.get("stop_fails"):
            raise RuntimeError(f"{self.name} cannot stop")


ORDERLY = ["start a", "start b", "start c", "stop c", "stop b", "stop a"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_drains_in_the_opposite_order(number: signal.Signals) -> None:
    log: list[str] = []
    await run_services([Recorder("a", log), Recorder("b", log), Recorder("c", log, signals=number)])
    assert log == ORDERLY


async def test_a_service_that_ends_ends_all() -> None:
    log: list[str] = []
    await run_services([Recorder("a", log), Recorder("b", log, ends=True), Recorder("c", log)])
    assert log == ORDERLY


async def test_the_error_of_a_service_is_raised_after_all_have_stopped() -> None:
    log: list[str] = []
    with pytest.raises(ValueError, match="broken"):
        await run_services([Recorder("a", log), Recorder("b", log, ends=ValueError("broken")), Recorder("c", log)])
    assert log == ORDERLY


async def test_a_service_that_cannot_start_stops_those_before_it_and_itself() -> None:
    log: list[str] = []
    with pytest.raises(RuntimeError, match="b cannot start"):
        await run_services([Recorder("a", log), Recorder("b", log, start_fails=True), Recorder("c", log)])
    assert log == ["start a", "start b", "stop b", "stop a"]


async def test_one_that_fails_to_stop_does_not_keep_the_others_from_stopping() -> None:
    log: list[str] = []
    with pytest.raises(RuntimeError, match="b cannot stop"):
        await run_services([Recorder("a", log), Recorder("b", log, stop_fails=True), Recorder("c", log, ends=True)])
    assert log == ORDERLY


async def test_a_second_signal_does_not_wait() -> None:
    log: list[str] = []
    with pytest.raises(Forced):
        await run_services([Recorder("a", log), Recorder("b", log, stop_hangs=True, signals=signal.SIGTERM)])
    assert log == ["start a", "start b", "stop b"]


async def test_ready_is_told_when_all_have_started() -> None:
    log: list[str] = []
    ready = asyncio.Event()

    class WaitsForReady(Recorder):
        async def run(self) -> None:
            await ready.wait()

    await run_services([Recorder("a", log), WaitsForReady("b", log)], ready=ready)
    assert ready.is_set()
