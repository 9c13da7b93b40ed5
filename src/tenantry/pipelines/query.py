"""One streaming query, kept running: what fails is started again, after a pause that grows."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

from pyspark.sql.streaming.query import StreamingQuery

from tenantry.pipelines.spark_errors import find_cause
from tenantry.telemetry import signal

STARTED = signal("pipelines.query_started", "A query of a pipeline runs.", "pipeline", "query")
FAILED = signal(
    "pipelines.query_failed",
    "A query of a pipeline failed, and is started again.",
    "pipeline",
    "query",
    "error",
    "details",
    "pause",
    level="error",
)

LONGEST_PAUSE: Final = 60.0
IS_STEADY_AFTER: Final = 60.0


class KeptQuery:
    """Runs in a thread of its own, so that Spark's local properties are its own, too."""

    def __init__(
        self,
        pipeline: str,
        query: str,
        start: Callable[[], StreamingQuery],
        *,
        first_pause: float,
        explain: Callable[[Exception], Exception] = lambda problem: problem,
        on_failure: Callable[[Exception], None] = lambda _: None,
        on_end: Callable[[], None] = lambda: None,
    ) -> None:
        self.pipeline = pipeline
        self.query = query
        self._start = start
        self._first_pause = first_pause
        self._explain = explain
        self._on_failure = on_failure
        self._on_end = on_end
        self._running: StreamingQuery | None = None
        self._stopping = threading.Event()
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._keep, name=f"query {pipeline}/{query}", daemon=True)
        self._thread.start()

    @property
    def is_running(self) -> bool:
        running = self._running
        return running is not None and running.isActive

    @property
    def recent_progress(self) -> Sequence[Any]:
        """What Spark has to say of the last batches."""
        running = self._running
        return running.recentProgress if running is not None else ()

    def stop(self) -> None:
        """Not in the middle of a batch if it can be helped; it would be repeated, and nothing lost."""
        self._stopping.set()
        with self._lock:
            running = self._running
        if running is not None:
            running.stop()
        self._thread.join(timeout=30)

    def _keep(self) -> None:
        pause = self._first_pause
        try:
            while not self._stopping.is_set():
                began = time.monotonic()
                try:
                    self._run()
                except Exception as problem:
                    if self._stopping.is_set():
                        return
                    if time.monotonic() - began > IS_STEADY_AFTER:
                        pause = self._first_pause
                    explained = self._explain(problem)
                    cause = find_cause(explained)
                    FAILED.emit(
                        pipeline=self.pipeline,
                        query=self.query,
                        error=cause.reason,
                        details=cause.traceback,
                        pause=round(pause, 3),
                    )
                    self._recover(explained)
                    self._stopping.wait(pause)
                    pause = min(2 * pause, LONGEST_PAUSE)
        finally:
            self._on_end()

    def _run(self) -> None:
        running = self._start()
        with self._lock:
            self._running = running
            if self._stopping.is_set():
                running.stop()
        STARTED.emit(pipeline=self.pipeline, query=self.query)
        running.awaitTermination()

    def _recover(self, problem: Exception) -> None:
        try:
            self._on_failure(problem)
        except Exception as second:
            cause = find_cause(second)
            FAILED.emit(
                pipeline=self.pipeline, query=self.query, error=cause.reason, details=cause.traceback, pause=0.0
            )
