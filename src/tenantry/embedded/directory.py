"""The one directory that holds all that the embedded servers keep: data, keys, ports, logs."""

from __future__ import annotations

import fcntl
import json
import os
import secrets
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Final, Self

from tenantry.errors import DataDirectoryInUse, DataDirectoryUnusable

FORMAT: Final = 1


class DataDirectory:
    """A data directory, held by one process at a time while it is entered."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock: IO[str] | None = None

    def __enter__(self) -> Self:
        self.acquire()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()

    def acquire(self) -> None:
        """Create the directory if need be and hold it; the kernel lets go of it however this process ends."""
        try:
            self.path.mkdir(parents=True, exist_ok=True, mode=0o700)
            lock = (self.path / "lock").open("a+")
        except OSError as problem:
            raise DataDirectoryUnusable(
                f"cannot use the data directory {self.path}: {problem.strerror}; choose another one with --data"
            ) from problem
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            lock.close()
            raise DataDirectoryInUse(
                f"the data directory {self.path} is in use by process {self.holder()}; stop that one, "
                "or start beside it with another directory: --data DIR"
            ) from None
        lock.truncate(0)
        lock.write(f"{os.getpid()}\n")
        lock.flush()
        self._lock = lock
        self._require_format()

    def release(self) -> None:
        if self._lock:
            self._lock.close()
            self._lock = None

    def holder(self) -> int | None:
        """The process that holds the directory now, if one does."""
        try:
            with (self.path / "lock").open() as lock:
                fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
                return None
        except BlockingIOError:
            return int((self.path / "lock").read_text().strip() or -1)
        except OSError:
            return None

    def folder(self, *names: str) -> Path:
        folder = self.path.joinpath(*names)
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        return folder

    def secret(self, *names: str) -> str:
        """A secret kept in a file that only its owner can read, made up at first use."""
        path = self.path.joinpath(*names)
        if not path.exists():
            self.write_secret(path, secrets.token_urlsafe(24))
        return path.read_text()

    @staticmethod
    def write_secret(path: Path, text: str) -> None:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        # Complete or absent: a crash must not leave half a key behind.
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
        except FileNotFoundError:
            return {}
        except ValueError as problem:
            raise DataDirectoryUnusable(
                f"{self.path / 'state.json'} is not readable: {problem}; remove it to choose ports anew"
            ) from None
        return document

    def remember(self, **values: Any) -> None:
        self.write_secret(self.path / "state.json", json.dumps(self.remembered() | values, indent=2) + "\n")

    def _require_format(self) -> None:
        found = self.remembered().get("format", FORMAT)
        if found != FORMAT:
            raise DataDirectoryUnusable(
                f"the data directory {self.path} has format {found} and this release reads {FORMAT}; "
                "use the release that wrote it, or another directory: --data DIR"
            )
        self.remember(format=FORMAT)
