"""Consumes accounts that somebody else provisioned: those of the configuration, and those of a watched directory.

What is consumed follows from what the directory says now, and not from what it said before: a folder that appears is
consumed, one that goes or no longer makes sense is drained, one that changes is drained and then consumed anew.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from watchfiles import awatch

from tenantry.config import StaticAccount
from tenantry.errors import AccountInvalid, BrokerUnreachable, TenantryError
from tenantry.nats.connections import Broker
from tenantry.service import forever
from tenantry.telemetry import signal
from tenantry.tenants.account_folder import Account, Listing, read_directory, read_static
from tenantry.tenants.account_verification import broker_of, require_provisioned

CONSUMED = signal(
    "accounts_directory.account.consumed",
    "The stream and the consumer of an account are there; it is consumed from now on.",
    "tenant",
    "origin",
)
CHANGED = signal(
    "accounts_directory.account.changed", "An account changed; it is drained and consumed anew.", "tenant", "origin"
)
REMOVED = signal(
    "accounts_directory.account.removed", "An account went and was drained.", "tenant", "origin", "seconds"
)
FAILED = signal(
    "accounts_directory.account.failed",
    "An account cannot be consumed; it is tried again after a pause or, without one, when its folder changes.",
    "origin",
    "reason",
    "retry_seconds",
    level="warning",
)
UNREADABLE = signal(
    "accounts_directory.unreadable",
    "The accounts directory cannot be listed or watched; what runs goes on, and it is tried again.",
    "directory",
    "reason",
    level="warning",
)

LOOK_SECONDS: Final = 5.0
"""How often to look whatever the system reports: it says nothing of links that lead elsewhere, nor of some mounts."""
FIRST_RETRY_SECONDS: Final = 0.2
LONGEST_RETRY_SECONDS: Final = 30.0
VERIFIED_SIDE_BY_SIDE: Final = 16

Consume = Callable[[Account, Broker], Awaitable[None]]


@dataclass(slots=True)
class _Backoff:
    """Longer and longer pauses, up to a limit, and never the same for two that failed together."""

    longest: float = FIRST_RETRY_SECONDS

    def pause(self) -> float:
        seconds = self.longest * random.uniform(0.5, 1.0)
        self.longest = min(self.longest * 2, LONGEST_RETRY_SECONDS)
        return seconds


class AccountsDirectory:
    """Runs `consume` for every account for as long as there is one. Without a directory nothing is watched."""

    name = "accounts directory"

    def __init__(
        self,
        broker: Broker,
        directory: Path | None,
        static: Sequence[StaticAccount],
        *,
        consume: Consume,
        debounce: float = 0.25,
    ) -> None:
        self._broker = broker
        self._directory = directory
        self._configured = static
        self._consume = consume
        self._debounce = debounce
        self._static: dict[str, Account] = {}
        self._wanted: dict[str, Account] = {}
        self._lives: dict[str, asyncio.Task[None]] = {}
        self._draining: dict[asyncio.Task[None], Account] = {}
        self._consumed: dict[str, Account] = {}
        self._failing: dict[str, str] = {}
        self._broken: dict[str, str] = {}
        self._unreadable: dict[str, str] = {}
        self._changed = asyncio.Event()
        self._verifying = asyncio.Semaphore(VERIFIED_SIDE_BY_SIDE)

    @property
    def accounts(self) -> tuple[Account, ...]:
        """Those that are consumed now."""
        return tuple(self._consumed.values())

    @property
    def problems(self) -> dict[str, str]:
        """What is wrong now, by origin: a folder, an entry of the configuration, or the directory itself."""
        return {**self._failing, **self._broken, **self._unreadable}

    async def start(self) -> None:
        """Raise AccountInvalid if the configuration is wrong: its accounts, what they name, or the directory."""
        taken: set[tuple[str, ...]] = set()
        for static in self._configured:
            account = read_static(static)
            if account.origin in self._static or not taken.isdisjoint(account.places()):
                raise AccountInvalid(
                    f"expected accounts of the configuration to differ in name, and in stream and consumer, "
                    f"got twice: {account.name} ({account.stream}, {account.consumer})"
                )
            self._static[account.origin] = account
            taken.update(account.places())
        outcomes = await asyncio.gather(*map(self._verify, self._static.values()), return_exceptions=True)
        # A broker that cannot be reached yet is no fault of the configuration: `run` tries again.
        problems = [each for each in outcomes if each is not None and not isinstance(each, BrokerUnreachable)]
        if len(problems) == 1:
            raise problems[0]
        if problems:
            raise AccountInvalid("\n".join(map(str, problems)))
        if self._directory is not None:
            try:
                await asyncio.to_thread(read_directory, self._directory)
            except OSError as problem:
                raise AccountInvalid(
                    f"cannot read the accounts directory {self._directory}: {problem.strerror or problem}; "
                    "create it, let this user read it, or correct accounts_directory"
                ) from problem

    async def run(self) -> None:
        if self._directory is None:
            self._settle(Listing(self._static))
            return await forever()
        watching = asyncio.ensure_future(self._watch(self._directory))
        # Watching has to begin before the first look, so that nothing slips in between.
        await asyncio.sleep(0)
        try:
            while True:
                self._changed.clear()
                await self._look(self._directory)
                with suppress(TimeoutError):
                    async with asyncio.timeout(LOOK_SECONDS):
                        await self._changed.wait()
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)

    async def stop(self) -> None:
        for life in self._lives.values():
            life.cancel()
        await asyncio.gather(*self._lives.values(), *self._draining, return_exceptions=True)

    def kill(self) -> None:
        for task in (*self._lives.values(), *self._draining):
            task.cancel()

    async def _watch(self, directory: Path) -> None:
        quiet, told = round(self._debounce * 1000), ""
        while True:
            watched = _identity(directory)
            try:
                # Changes are told once it has been quiet; who keeps writing does not put that off for long. No name is
                # left out, for mounts of secrets change by a link that starts with a dot.
                watcher = awatch(
                    directory,
                    watch_filter=None,
                    step=quiet,
                    debounce=4 * quiet,
                    rust_timeout=round(LOOK_SECONDS * 1000),
                    yield_on_timeout=True,
                    ignore_permission_denied=True,
                )
                async with aclosing(watcher) as changes:
                    async for _ in changes:
                        self._changed.set()
                        # The system watches a directory and not a name: another may have it by now.
                        if _identity(directory) != watched:
                            break
            except Exception as problem:
                # Watching only saves time. Looking goes on, and says so itself if the directory is gone.
                reason = f"cannot watch {directory}, and look every {LOOK_SECONDS:g} s instead: {problem}"
                if watched and reason != told:
                    UNREADABLE.emit(directory=str(directory), reason=reason)
                    told = reason
                await asyncio.sleep(LOOK_SECONDS)

    async def _look(self, directory: Path) -> None:
        try:
            listing = await asyncio.to_thread(read_directory, directory, self._static.values())
        except OSError as problem:
            reason = f"cannot list {directory}: {problem.strerror or problem}"
            if reason not in self._unreadable.values():
                UNREADABLE.emit(directory=str(directory), reason=reason)
            self._unreadable = {str(directory): reason}
            listing = Listing({}, self._broken, frozenset(self._wanted))
        else:
            self._unreadable = {}
        self._settle(listing)

    def _settle(self, listing: Listing) -> None:
        """Make what is consumed follow from what was found."""
        for origin, reason in listing.problems.items():
            if self._broken.get(origin) != reason:
                FAILED.emit(origin=origin, reason=reason, retry_seconds=None)
        self._broken = listing.problems
        # Nothing is known of what could not be read: what runs goes on.
        kept = {origin: self._wanted[origin] for origin in listing.unread & self._wanted.keys()}
        wanted = {**kept, **self._static, **listing.accounts}
        for origin, account in self._wanted.items():
            if wanted.get(origin) != account:
                self._drain(account, changed=origin in wanted)
        for origin, account in wanted.items():
            if origin not in self._lives:
                self._lives[origin] = asyncio.ensure_future(self._live(account, self._to_wait_for(account)))
        self._wanted = wanted

    def _drain(self, account: Account, *, changed: bool) -> None:
        began = time.perf_counter()

        def drained(task: asyncio.Task[None]) -> None:
            del self._draining[task]
            if not changed:
                seconds = time.perf_counter() - began
                REMOVED.emit(tenant=account.tenant_id, origin=account.origin, seconds=seconds)

        life = self._lives.pop(account.origin)
        self._draining[life] = account
        self._failing.pop(account.origin, None)
        if changed:
            CHANGED.emit(tenant=account.tenant_id, origin=account.origin)
        life.add_done_callback(drained)
        life.cancel()

    def _to_wait_for(self, account: Account) -> list[asyncio.Task[None]]:
        """What still drains and has the same work, be it from a folder that was renamed: two would mix the order."""
        places = set(account.places())
        return [
            task
            for task, other in self._draining.items()
            if other.origin == account.origin or not places.isdisjoint(other.places())
        ]

    async def _live(self, account: Account, before: list[asyncio.Task[None]]) -> None:
        """Consume until cancelled; whatever fails is tried again."""
        if before:
            await asyncio.wait(before)
        backoff = _Backoff()
        while True:
            began = time.perf_counter()
            reason = await self._attempt(account)
            if _is_to_end():
                if reason:
                    FAILED.emit(origin=account.origin, reason=f"{reason} (while it was drained)", retry_seconds=None)
                return
            if time.perf_counter() - began > LONGEST_RETRY_SECONDS:
                backoff = _Backoff()
            pause = backoff.pause()
            self._failing[account.origin] = reason
            FAILED.emit(origin=account.origin, reason=reason, retry_seconds=round(pause, 3))
            await asyncio.sleep(pause)

    async def _attempt(self, account: Account) -> str:
        """Verify and consume once; the result says why that ended, unless it was to."""
        try:
            await self._verify(account)
            if _is_to_end():
                # The client waits in ways that can swallow a cancellation: https://github.com/python/cpython/issues/86296
                raise asyncio.CancelledError
            self._failing.pop(account.origin, None)
            self._consumed[account.origin] = account
            CONSUMED.emit(tenant=account.tenant_id, origin=account.origin)
            await self._consume(account, broker_of(account, self._broker))
        except asyncio.CancelledError:
            if _is_to_end():
                raise
            return f"{account.origin}: its consumption cancelled itself"
        except TenantryError as problem:
            return str(problem)
        except Exception as problem:
            return f"{account.origin}: {type(problem).__name__}: {problem}"
        finally:
            self._consumed.pop(account.origin, None)
        return "" if _is_to_end() else f"{account.origin}: its consumption ended by itself"

    async def _verify(self, account: Account) -> None:
        async with self._verifying:
            await require_provisioned(account, self._broker)


def _identity(directory: Path) -> tuple[int, int] | None:
    """Which directory has this name now."""
    try:
        found = directory.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _is_to_end() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
