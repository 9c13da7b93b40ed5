"""A fleet: as many processes of workers as there is work for, between two bounds, and those that are asked for."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Final

from tenantry.service import side_by_side
from tenantry.subscriptions.gauge import Gauge
from tenantry.subscriptions.post import Post, Spawn
from tenantry.subscriptions.posted_jobs import PostedJobs
from tenantry.subscriptions.roll_reader import Present, RollReader
from tenantry.subscriptions.scaling import Bounds, Pace
from tenantry.subscriptions.worker import HOST
from tenantry.telemetry import signal

SCALED = signal(
    "subscriptions.fleet_scaled",
    "A fleet has another number of workers from now on.",
    "before",
    "now",
    "lag",
    "events_per_second",
    "seconds_per_event",
)

CARE_SECONDS: Final = 0.2
SETTLE_SECONDS: Final = 2.0
"""So long what was changed is left to show what it does."""


class Fleet:
    """A service."""

    name = "fleet"

    def __init__(
        self, bounds: Bounds, *, spawn: Spawn, reader: RollReader, jobs: PostedJobs, pace: Pace | None = None
    ) -> None:
        self._bounds = bounds
        self._spawn = spawn
        self._reader = reader
        self._jobs = jobs
        self._pace = pace or Pace()
        self._gauge = Gauge(self._pace)
        self._posts: list[Post] = []
        self._started = 0
        self._leaving: dict[asyncio.Task[None], Post] = {}
        self._changed_at = 0.0

    async def start(self) -> None:
        await self._reader.start()
        self._grow(self._bounds.least)

    async def run(self) -> None:
        await side_by_side(
            self._again(self._care, CARE_SECONDS),
            self._again(self._scale, self._pace.look_seconds),
            self._jobs.run(),
            self._reader.run(),
        )

    async def stop(self) -> None:
        for post in self._posts:
            self._dismiss(post)
        await asyncio.gather(self._jobs.stop(), *self._leaving)
        await self._reader.stop()

    def kill(self) -> None:
        for post in (*self._posts, *self._leaving.values()):
            post.kill()
        self._jobs.kill()

    async def _again(self, act: Callable[[], Awaitable[None]], seconds: float) -> None:
        while True:
            await act()
            await asyncio.sleep(seconds)

    async def _care(self) -> None:
        for post in self._posts:
            post.care()

    async def _scale(self) -> None:
        ours = self._ours()
        self._gauge.note(ours, workers=len(self._posts))
        if len(ours) < len(self._posts) or time.monotonic() < self._changed_at + SETTLE_SECONDS:
            # Whoever has just been started has taken nothing over yet: all the rest would seem too little.
            return
        decision, before = self._gauge.decide(self._bounds), len(self._posts)
        if decision.wanted > before:
            self._grow(decision.wanted - before)
        elif decision.wanted < before:
            self._dismiss(self._posts.pop())
        else:
            return
        self._changed_at = time.monotonic()
        SCALED.emit(
            before=before,
            now=len(self._posts),
            lag=decision.lag,
            events_per_second=decision.events_per_second,
            seconds_per_event=decision.seconds_per_event,
        )

    def _ours(self) -> list[Present]:
        """Other fleets look after theirs; those that leave hand over what they have."""
        pids = {post.pid for post in self._posts}
        return [each for each in self._reader.present() if each.member.host == HOST and each.member.pid in pids]

    def _grow(self, count: int) -> None:
        for _ in range(count):
            self._started += 1
            post = Post(f"worker-{self._started}", self._spawn)
            post.care()
            self._posts.append(post)

    def _dismiss(self, post: Post) -> None:
        task = asyncio.create_task(post.stop(), name=f"stop {post.name}")
        self._leaving[task] = post
        task.add_done_callback(self._leaving.pop)
