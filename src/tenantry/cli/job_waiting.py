"""Waiting for jobs that other processes do: a bar for each, and Ctrl-C to cancel them."""

from __future__ import annotations

import asyncio
import signal
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any, Final, Protocol, TypeVar
from uuid import UUID

import msgspec

from tenantry.cli.options import Options
from tenantry.cli.output import note, print_json, progress, say
from tenantry.cli.session import actor, administer
from tenantry.errors import TenantConflict
from tenantry.tenants.administration import Administration

LOOK_SECONDS: Final = 0.2
NOBODY_AFTER: Final = 10.0


class Job(Protocol):
    @property
    def id(self) -> UUID: ...
    @property
    def title(self) -> str: ...
    @property
    def unit(self) -> str:
        """What is counted."""

    @property
    def state(self) -> str: ...
    @property
    def done(self) -> int: ...
    @property
    def failed(self) -> int: ...
    @property
    def total(self) -> int | None: ...
    @property
    def problem(self) -> str: ...
    @property
    def asked_at(self) -> datetime: ...
    @property
    def updated_at(self) -> datetime: ...
    @property
    def is_waiting(self) -> bool: ...
    @property
    def has_ended(self) -> bool: ...


AnyJob = TypeVar("AnyJob", bound=Job)
ItsJob = TypeVar("ItsJob", bound=Job, covariant=True)


class Desk(Protocol[ItsJob]):
    """Where jobs are asked for, looked at and cancelled."""

    @property
    def listing(self) -> str:
        """The command that lists them."""

    @property
    def nobody(self) -> str:
        """What to say if nobody begins."""

    async def get(self, id: str) -> ItsJob: ...

    async def cancel(self, id: str, actor: str) -> ItsJob: ...


AnyDesk = TypeVar("AnyDesk", bound=Desk[Any])


def do_job(
    options: Options,
    open_desk: Callable[[Administration], AnyDesk],
    ask: Callable[[AnyDesk], Awaitable[Job]],
    *,
    detach: bool,
    json: bool,
) -> None:
    """Ask for a job and wait for its end, unless `detach`. Exit status 1 if it fails or is cancelled."""

    async def act(administration: Administration) -> tuple[Job, str]:
        desk = open_desk(administration)
        if detach:
            return await ask(desk), desk.listing
        interrupted = watch_for_interrupt()
        return await wait_for_end(desk, await ask(desk), interrupted), desk.listing

    job, listing = administer(options, act)
    if json:
        print_json(describe(job))
    else:
        tell(job, listing)
    exit_by([job])


def describe(job: Any) -> dict[str, Any]:
    document: dict[str, Any] = msgspec.to_builtins(job)
    return document


def tell(job: Job, listing: str) -> None:
    """What has become of it."""
    if not job.has_ended:
        say(f"Job {job.id} is asked for; `{listing}` shows how far it is")
    elif job.state == "done":
        failed = f"; {job.failed:,} failed again, the last one with {job.problem}" if job.failed else ""
        say(f"{job.title}: done, {job.done:,} {job.unit} in {_seconds(job):.1f} s{failed}")
    elif job.state == "cancelled":
        note(f"{job.title}: cancelled after {job.done + job.failed:,} of {job.total or 0:,} {job.unit}")


def exit_by(jobs: Sequence[Job]) -> None:
    """With a status that says whether all went well."""
    for job in jobs:
        if job.state == "failed":
            sys.exit(f"tenantry: {job.title} failed: {job.problem}")
    if any(job.state == "cancelled" or job.failed for job in jobs):
        sys.exit(1)


def watch_for_interrupt() -> asyncio.Event:
    """Set by Ctrl-C, which from now on ends nothing by itself, but for the second one."""
    interrupted = asyncio.Event()
    loop = asyncio.get_running_loop()

    def interrupt() -> None:
        # Whoever asks twice does not want to wait.
        loop.remove_signal_handler(signal.SIGINT)
        interrupted.set()

    loop.add_signal_handler(signal.SIGINT, interrupt)
    return interrupted


async def wait_for_end(desk: Desk[AnyJob], job: AnyJob, interrupted: asyncio.Event | None = None) -> AnyJob:
    return (await wait_for_ends(desk, [job], interrupted))[0]


async def wait_for_ends(
    desk: Desk[AnyJob], jobs: Sequence[AnyJob], interrupted: asyncio.Event | None = None
) -> list[AnyJob]:
    """`interrupted`: what `watch_for_interrupt` gave before the jobs were asked for."""
    interrupted = interrupted or watch_for_interrupt()
    found = list(jobs)
    asked, is_told, is_cancelling = time.monotonic(), False, False
    with progress() as bars:
        tasks = [bars.add_task(job.title, total=job.total) for job in found]
        while not all(job.has_ended for job in found):
            if interrupted.is_set() and not is_cancelling:
                is_cancelling = True
                note("Cancelling; what is under way is finished.")
                found = [await _cancel(desk, job) for job in found]
            if any(job.is_waiting for job in found) and not is_told and time.monotonic() - asked > NOBODY_AFTER:
                is_told = True
                note(f"{desk.nobody} It goes on waiting.")
            await asyncio.sleep(LOOK_SECONDS)
            found = [job if job.has_ended else await desk.get(str(job.id)) for job in found]
            for task, job in zip(tasks, found, strict=True):
                bars.update(task, completed=job.done + job.failed, total=job.total)
    return found


async def _cancel(desk: Desk[AnyJob], job: AnyJob) -> AnyJob:
    if not job.has_ended:
        # It may have ended just now.
        with suppress(TenantConflict):
            return await desk.cancel(str(job.id), actor())
    return job


def _seconds(job: Job) -> float:
    return (job.updated_at - job.asked_at).total_seconds()
