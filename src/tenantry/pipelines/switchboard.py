"""Answers the catalogs of all queries, from inside the driver's process."""

from __future__ import annotations

import shutil
import tempfile
import threading
from collections.abc import Callable
from multiprocessing.connection import Connection, Listener
from pathlib import Path
from typing import Final

from pyspark_nats import Stream

Answer = Callable[[], list[Stream]]

ENDED: Final = (OSError, EOFError)


class Switchboard:
    """Each query's catalog has a line of its own; it is asked after each batch, and answered at once."""

    def __init__(self) -> None:
        self._answers: dict[str, Answer] = {}
        # A socket's path must be short, and the folder is this user's alone.
        self._folder = Path(tempfile.mkdtemp(prefix="tenantry-"))
        self.address = str(self._folder / "catalog")
        self._listener = Listener(self.address, family="AF_UNIX")
        threading.Thread(target=self._accept, name="switchboard", daemon=True).start()

    def connect(self, query: str, answer: Answer) -> None:
        self._answers[query] = answer

    def disconnect(self, query: str) -> None:
        self._answers.pop(query, None)

    def close(self) -> None:
        self._listener.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _accept(self) -> None:
        while True:
            try:
                line = self._listener.accept()
            except ENDED:
                return
            threading.Thread(target=self._serve, args=(line,), name="switchboard line", daemon=True).start()

    def _serve(self, line: Connection) -> None:
        with line:
            while True:
                try:
                    query = line.recv()
                    line.send(self._answer(query))
                except ENDED:
                    return

    def _answer(self, query: str) -> list[Stream] | Exception:
        answer = self._answers.get(query)
        if answer is None:
            return RuntimeError(f"the query {query} has ended")
        try:
            return answer()
        except Exception as problem:
            # Only what surely survives the way: an exception of ours may not be importable where it arrives.
            return RuntimeError(f"{type(problem).__name__}: {problem}")
