"""The one directory that holds all that the embedded servers keep: data, keys, ports, logs."""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import secrets
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, Final

from tenantry.errors import DataDirectoryInUse, DataDirectoryUnusable

FORMAT: Final = 1
# Somebody who only looks holds the lock for an instant.
LOCK_SECONDS: Final = 0.5
LOOK_SECONDS: Final = 0.05
# Root's servers run as somebody else, who must be able to walk through, though not to look around.
FOLDER_MODE: Final = 0o711 if os.geteuid() == 0 else 0o700


class DataDirectory:
    """A data directory. One process holds it at a time, and only that one writes."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock: int | None = None

    def acquire(self) -> None:
        """Create the directory if need be and hold it; the kernel lets go of it however this process ends."""
        try:
            self.path.mkdir(parents=True, exist_ok=True, mode=FOLDER_MODE)
            owner = self.path.stat().st_uid
            if owner != os.geteuid():
                raise DataDirectoryUnusable(
                    f"the data directory {self.path} belongs to user {owner} and we are user {os.geteuid()}; "
                    "choose another one with --data"
                )
            lock = os.open(self.path / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as problem:
            raise self._unusable(problem) from problem
        deadline = time.monotonic() + LOCK_SECONDS
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except OSError:
                if time.monotonic() < deadline:
                    time.sleep(0.02)
                    continue
                os.close(lock)
                raise DataDirectoryInUse(
                    f"the data directory {self.path} is in use by process {self._number()}; stop that one, "
                    "or start beside it with another directory: --data DIR"
                ) from None
        os.pwrite(lock, f"{os.getpid():<10}\n".encode(), 0)
        self._lock = lock
        self._require_format()

    def release(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def holder(self) -> str | None:
        """The number of the process that holds the directory now, if one does."""
        try:
            lock = os.open(self.path / "lock", os.O_RDONLY)
        except FileNotFoundError:
            return None
        except OSError as problem:
            raise self._unusable(problem) from problem
        try:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return self._number()
        finally:
            os.close(lock)
        return None

    @contextmanager
    def joined(self) -> Iterator[bool]:
        """Use what another process runs here: whether it may be, for one that is about to stop takes nobody in."""
        with self._users() as users:
            try:
                fcntl.flock(users, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                yield False
            else:
                yield True

    @asynccontextmanager
    async def alone(self) -> AsyncIterator[None]:
        """Wait until nobody else uses what we run here; from then on nobody is taken in."""
        with self._users() as users:
            while True:
                try:
                    fcntl.flock(users, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    await asyncio.sleep(LOOK_SECONDS)
            yield

    @contextmanager
    def _users(self) -> Iterator[int]:
        users = os.open(self.path / "users", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            yield users
        finally:
            os.close(users)

    def folder(self, *names: str) -> Path:
        folder = self.path.joinpath(*names)
        folder.mkdir(parents=True, exist_ok=True, mode=FOLDER_MODE)
        return folder

    def secret(self, name: str, make: Callable[[], str] = lambda: secrets.token_urlsafe(24)) -> str:
        """A secret under `keys`, which only its owner can read; made at first use, if we hold the directory."""
        path = self.secret_path(name)
        try:
            return path.read_text()
        except FileNotFoundError:
            if self._lock is None:
                raise DataDirectoryUnusable(
                    f"{path} is not there yet: the platform with this data directory is still starting; try again"
                ) from None
        text = make()
        self.write(path, text)
        return text

    def secret_path(self, name: str) -> Path:
        return self.path / "keys" / name

    def write(self, path: Path, text: str) -> None:
        """Write a file that only its owner can read, complete or not at all: a crash must not leave half a key."""
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        draft = path.with_name(path.name + ".new")
        draft.unlink(missing_ok=True)
        with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        draft.rename(path)

    def remembered(self) -> dict[str, Any]:
        """What an earlier start decided, such as ports."""
        try:
            document: dict[str, Any] = json.loads((self.path / "state.json").read_text())
        except (FileNotFoundError, NotADirectoryError):
            return {}
        except OSError as problem:
            raise self._unusable(problem) from problem
        except ValueError as problem:
            raise DataDirectoryUnusable(
                f"{self.path / 'state.json'} is not readable: {problem}; remove it to choose ports anew"
            ) from None
        return document

    def remember(self, **values: Any) -> None:
        self.write(self.path / "state.json", json.dumps(self.remembered() | values, indent=2) + "\n")

    def _require_format(self) -> None:
        found = self.remembered().get("format", FORMAT)
        if found != FORMAT:
            self.release()
            raise DataDirectoryUnusable(
                f"the data directory {self.path} has format {found} and this release reads {FORMAT}; "
                "use the release that wrote it, or another directory: --data DIR"
            )
        self.remember(format=FORMAT)

    def _number(self) -> str:
        return (self.path / "lock").read_text().strip() or "unknown"

    def _unusable(self, problem: OSError) -> DataDirectoryUnusable:
        return DataDirectoryUnusable(
            f"cannot use the data directory {self.path}: {problem.strerror}; choose another one with --data"
        )
