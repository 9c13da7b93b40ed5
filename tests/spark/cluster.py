"""A Spark standalone cluster on loopback: a master, two workers with one core each, and applications sent to them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self
from urllib.request import urlopen

import psutil
import pyspark

from tenantry.embedded.child import Child
from tenantry.embedded.java import find_java, spark_environment
from tenantry.embedded.ports import HOST, free_port
from tests.processes import PATIENCE, wait_for

SPARK_HOME: Final = Path(pyspark.__file__).parent
WORKERS: Final = 2

_SETTINGS: Final = {
    "spark.cores.max": str(WORKERS),
    "spark.driver.host": HOST,
    "spark.driver.memory": "512m",
    "spark.executor.cores": "1",
    "spark.executor.memory": "512m",
    "spark.log.level": "WARN",
    # Both executors are there before the first task is handed out.
    "spark.scheduler.maxRegisteredResourcesWaitingTime": f"{PATIENCE:.0f}s",
    "spark.scheduler.minRegisteredResourcesRatio": "1.0",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "2",
    "spark.ui.enabled": "false",
}


def environment(folder: Path, memory: str) -> dict[str, str]:
    """For Spark's programs, whatever is set outside; `memory` is for its servers."""
    outside = {name: "" for name in os.environ if name.startswith(("SPARK_", "PYSPARK_", "PYTHONPATH"))}
    return {
        **outside,
        **spark_environment(find_java(), folder),
        "SPARK_HOME": str(SPARK_HOME),
        "SPARK_DAEMON_MEMORY": memory,
        "SPARK_LOCAL_DIRS": str(folder / "local"),
    }


def python_without_the_package(folder: Path) -> Path:
    """All that is installed here, except for what is installed as a link to its sources: that is, ourselves."""
    venv.create(folder, symlinks=True)
    here, there = (Path(sysconfig.get_path("purelib", vars={"base": str(base)})) for base in (sys.prefix, folder))
    # Python does not read the .pth files of a folder that itself is named in one.
    (there / "others.pth").write_text(str(here))
    return folder / "bin" / "python"


class SparkProcess:
    """A program of Spark's. Whatever it started ends with it."""

    def __init__(self, name: str, folder: Path, command: Sequence[str | Path], environment: Mapping[str, str]) -> None:
        folder.mkdir(parents=True)
        self._child = Child(name, folder, signal.SIGTERM)
        self._child.spawn(command, environment)

    @property
    def process(self) -> psutil.Process:
        assert self._child.process is not None
        return psutil.Process(self._child.process.pid)

    @property
    def log(self) -> str:
        return self._child.log.read_text(errors="replace")

    @property
    def is_running(self) -> bool:
        return self._child.is_running

    def require_running(self) -> None:
        self._child.require_running()

    def wait(self) -> int:
        assert self._child.process is not None
        return self._child.process.wait(2 * PATIENCE)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        child = self._child.process
        assert child is not None
        if child.poll() is None:
            started = self.process.children(recursive=True)
            child.terminate()
            with suppress(subprocess.TimeoutExpired):
                child.wait(PATIENCE)
            child.kill()
            child.wait()
            # Executors notice that their worker is gone, and Python that its executor is; those that do not are told.
            _, left = psutil.wait_procs(started, timeout=5)
            for process in left:
                with suppress(psutil.NoSuchProcess):
                    process.kill()
            psutil.wait_procs(left, timeout=PATIENCE)


class Application(SparkProcess):
    """A script that `command` runs; it writes one document as its result."""

    def __init__(
        self,
        folder: Path,
        command: Sequence[str | Path],
        script: str,
        arguments: Sequence[str | Path],
        environment: Mapping[str, str],
    ) -> None:
        program = folder.with_suffix(".py")
        program.write_text(script)
        self._result = folder / "result.json"
        super().__init__("application", folder, [*command, program, self._result, *arguments], environment)

    def kill(self) -> None:
        """It, and what it started here, at once."""
        if self.is_running:
            process = self.process
            doomed = [process, *process.children(recursive=True)]
            for each in doomed:
                with suppress(psutil.NoSuchProcess):
                    each.kill()
            self.wait()
            psutil.wait_procs(doomed, timeout=PATIENCE)

    def until(self, condition: Callable[[], bool]) -> None:
        """Wait while it runs."""
        wait_for(lambda: condition() or not self.is_running)
        assert self.is_running, self.log

    def result(self) -> Any:
        """Wait until it has ended."""
        assert self.wait() == 0, self.log
        return json.loads(self._result.read_text())


class Cluster:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._port, self._page = free_port(), free_port()
        self._running: list[SparkProcess] = []
        self._environment = environment(folder, memory="256m")

    @property
    def url(self) -> str:
        return f"spark://{HOST}:{self._port}"

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # Workers before the master, whom they would otherwise look for.
        while self._running:
            self._running.pop().__exit__(kind, error, trace)

    def _start(self) -> None:
        self._launch("master", "master.Master", "--port", str(self._port), "--webui-port", str(self._page))
        wait_for(lambda: self.state() is not None)
        for number in range(1, WORKERS + 1):
            place = self._folder / f"worker-{number}"
            self._launch(
                *(place.name, "worker.Worker", "--cores", "1", "--memory", "1g", "--webui-port", "0"),
                *("--work-dir", str(place / "work"), self.url),
            )
        wait_for(lambda: len(self._alive_workers()) == WORKERS)

    def _launch(self, name: str, kind: str, *arguments: str) -> None:
        program = str(SPARK_HOME / "bin" / "spark-class")
        command = [program, f"org.apache.spark.deploy.{kind}", "--host", HOST, *arguments]
        self._running.append(SparkProcess(name, self._folder / name, command, self._environment))

    def state(self) -> dict[str, Any] | None:
        """What the master's page says, once there is one."""
        for process in self._running:
            process.require_running()
        try:
            with urlopen(f"http://{HOST}:{self._page}/json/", timeout=PATIENCE) as page:
                # The pages come up one by one, and until this one has, another may answer in its place.
                return dict(json.load(page)) if page.headers.get_content_type() == "text/json" else None
        except OSError:
            return None

    def _alive_workers(self) -> list[dict[str, Any]]:
        return [worker for worker in (self.state() or {"workers": []})["workers"] if worker["state"] == "ALIVE"]

    def executors(self) -> list[psutil.Process]:
        """Those that run now."""
        found = []
        for process in self._running:
            for child in process.process.children():
                with suppress(psutil.NoSuchProcess):
                    if "CoarseGrainedExecutorBackend" in " ".join(child.cmdline()):
                        found.append(child)
        return found

    def executor_in(self, folder: Path) -> psutil.Process:
        """The executor that has this working directory."""
        found = []
        for process in self._running:
            for child in process.process.children():
                with suppress(psutil.NoSuchProcess):
                    if Path(child.cwd()) == folder:
                        found.append(child)
        (executor,) = found
        return executor

    def submit(
        self,
        folder: Path,
        script: str,
        *arguments: str | Path,
        py_files: Path | None = None,
        settings: Mapping[str, str] | None = None,
        variables: Mapping[str, str] | None = None,
    ) -> Application:
        """`spark-submit`, from a folder of its own. The script finds the path of its result as its first argument."""
        command: list[str | Path] = [SPARK_HOME / "bin" / "spark-submit", "--master", self.url]
        for name, value in {**_SETTINGS, **(settings or {})}.items():
            command += ["--conf", f"{name}={value}"]
        if py_files:
            command += ["--py-files", py_files]
        return Application(folder, command, script, arguments, {**self._environment, **(variables or {})})
