"""The lifecycle: started in order, drained in the opposite order, forced by a second signal."""

from __future__ import annotations

import asyncio
import os
import signal
from typing import Any

import pytest

from tenantry.errors import Forced
from tenantry.service import end, run_services, side_by_side


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

    def kill(self) -> None:
        self._log.append(f"kill {self.name}")


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


async def test_a_second_signal_kills_all_instead_of_waiting() -> None:
    log: list[str] = []
    with pytest.raises(Forced):
        await run_services([Recorder("a", log), Recorder("b", log, stop_hangs=True, signals=signal.SIGTERM)])
    assert log[:5] == ["start a", "start b", "stop b", "kill b", "kill a"]


async def test_a_second_signal_does_not_wait_for_work_that_will_not_be_cancelled() -> None:
    log: list[str] = []

    class Stubborn(Recorder):
        async def run(self) -> None:
            os.kill(os.getpid(), signal.SIGTERM)
            try:
                await asyncio.Event().wait()
            finally:
                os.kill(os.getpid(), signal.SIGTERM)
                await asyncio.Event().wait()

    with pytest.raises(Forced):
        await run_services([Recorder("a", log), Stubborn("b", log)])
    assert log[:4] == ["start a", "start b", "kill b", "kill a"]


async def test_an_error_is_told_even_if_a_signal_comes_while_the_others_wind_down() -> None:
    log: list[str] = []

    class SlowToEnd(Recorder):
        async def run(self) -> None:
            try:
                await asyncio.Event().wait()
            finally:
                os.kill(os.getpid(), signal.SIGTERM)
                await asyncio.sleep(0)

    with pytest.raises(ValueError, match="broken"):
        await run_services([Recorder("a", log, ends=ValueError("broken")), SlowToEnd("b", log)])
    assert log == ["start a", "start b", "stop b", "stop a"]


async def test_a_signal_during_the_start_ends_it() -> None:
    log: list[str] = []

    class SlowToStart(Recorder):
        async def start(self) -> None:
            await super().start()
            os.kill(os.getpid(), signal.SIGTERM)
            await asyncio.Event().wait()

    await run_services([Recorder("a", log), SlowToStart("b", log), Recorder("c", log)])
    assert log == ["start a", "start b", "stop b", "stop a"]


async def test_work_that_swallows_a_cancellation_is_cancelled_again() -> None:
    swallowed = 0

    async def stubborn() -> None:
        nonlocal swallowed
        while True:
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                if swallowed:
                    raise
                swallowed += 1

    async with asyncio.timeout(30):
        work = asyncio.create_task(side_by_side(stubborn(), asyncio.sleep(60)))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        await end([work])
    assert swallowed == 1
    assert work.cancelled()


async def test_work_side_by_side_ends_with_the_first_that_fails() -> None:
    async def fail() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await side_by_side(asyncio.sleep(60), fail())
