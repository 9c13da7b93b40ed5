"""Waiting for a job that the pipeline process does: a bar, and Ctrl-C to cancel it."""

from __future__ import annotations

import asyncio
import signal
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, Final

import msgspec

from tenantry.cli.options import Options
from tenantry.cli.output import note, print_json, progress, say
from tenantry.cli.session import actor, administer
from tenantry.errors import TenantConflict
from tenantry.pipelines.job_desk import Job, JobDesk
from tenantry.tenants.administration import Administration

LOOK_SECONDS: Final = 0.2
NOBODY_AFTER: Final = 10.0


def do_job(options: Options, ask: Callable[[JobDesk], Awaitable[Job]], *, detach: bool, json: bool) -> None:
    """Ask for a job and wait for its end, unless `detach`. Exit status 1 if it fails or is cancelled."""

    async def act(administration: Administration) -> Job:
        desk = JobDesk(administration)
        job = await ask(desk)
        return job if detach else await wait_for_end(desk, job)

    job = administer(options, act)
    if json:
        print_json(describe(job))
    elif detach:
        say(f"Job {job.id} is asked for; `tenantry pipeline jobs` shows how far it is")
    elif job.state == "done":
        say(f"{_title(job)}: done, {job.done:,} sequences in {_seconds(job):.1f} s")
    elif job.state == "cancelled":
        note(f"{_title(job)}: cancelled after {job.done:,} of {job.total or 0:,} sequences")
    if job.state == "failed":
        sys.exit(f"tenantry: {_title(job)} failed: {job.problem}")
    if job.state == "cancelled":
        sys.exit(1)


def describe(job: Job) -> dict[str, Any]:
    document: dict[str, Any] = msgspec.to_builtins(job)
    return document


async def wait_for_end(desk: JobDesk, job: Job) -> Job:
    interrupted = asyncio.Event()
    loop = asyncio.get_running_loop()

    def interrupt() -> None:
        # Whoever asks twice does not want to wait.
        loop.remove_signal_handler(signal.SIGINT)
        interrupted.set()

    loop.add_signal_handler(signal.SIGINT, interrupt)
    asked, is_told, is_cancelling = time.monotonic(), False, False
    with progress() as bars:
        bar = bars.add_task(_title(job), total=None)
        while not job.has_ended:
            if interrupted.is_set() and not is_cancelling:
                is_cancelling = True
                note("Cancelling; it ends after the chunk that is under way.")
                with suppress(TenantConflict):
                    # It may have ended just now.
                    job = await desk.cancel(str(job.id), actor())
            if job.state == "waiting" and not is_told and time.monotonic() - asked > NOBODY_AFTER:
                is_told = True
                note(
                    "No pipeline process has taken the job yet: `tenantry serve pipeline` or `tenantry up` starts one, "
                    "unless another job is under way (`tenantry pipeline jobs`). It goes on waiting."
                )
            await asyncio.sleep(LOOK_SECONDS)
            job = await desk.get(str(job.id))
            bars.update(bar, completed=job.done, total=job.total)
    return job


def _title(job: Job) -> str:
    return f"{job.kind} of {job.pipeline}" + (f" for {job.tenant_id}" if job.tenant_id else "")


def _seconds(job: Job) -> float:
    return (job.updated_at - job.asked_at).total_seconds()
