"""Which Java is taken, and what is said when there is none."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from resources.java import JavaNotFound, java, java_home

if TYPE_CHECKING:
    from pathlib import Path


def installed(home: Path, version: str) -> Path:
    """A `java` that tells this version, as each of them does: on standard error."""
    path = home / "bin" / "java"
    path.parent.mkdir(parents=True)
    path.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2025-01-01' >&2\n")
    path.chmod(0o755)
    return path


@pytest.fixture(autouse=True)
def nowhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A machine without Java."""
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))


@pytest.mark.parametrize("version", ["17.0.15", "21", "21.0.2"])
def test_java_home_is_taken_if_spark_runs_on_it(version: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = installed(tmp_path / "jdk", version)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "jdk"))
    assert java() == path
    assert java_home(java()) == tmp_path / "jdk"


def test_a_java_on_the_path_replaces_an_old_java_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    installed(tmp_path / "old", "11.0.2")
    path = installed(tmp_path / "new", "17.0.1")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "old"))
    monkeypatch.setenv("PATH", str(path.parent), prepend=":")
    assert java() == path


@pytest.mark.parametrize(("version", "told"), [("1.8.0_392", "Java 8"), ("11.0.2", "Java 11"), ("25", "Java 25")])
def test_a_java_that_spark_does_not_run_on_is_named(
    version: str, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed(tmp_path / "jdk", version)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "jdk"))
    with pytest.raises(JavaNotFound, match=f"{told}.*install"):
        java()


def test_without_java_the_error_says_how_to_get_it() -> None:
    with pytest.raises(JavaNotFound, match=r"no java .* install"):
        java()
