"""The jars are the pinned ones, fetched once."""

from __future__ import annotations

import hashlib
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

import resources.jars
from resources.jars import JarsUnavailable, checksums, groups, jars

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

GIVEN = {"a-1.jar": b"a", "b-2.jar": b"b"}


@pytest.fixture
def repository(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[dict[str, bytes]], list[str]]:
    """Put these jars where Maven Central would be; gives the list of the groups that were then fetched."""
    monkeypatch.setenv("TIDETABLE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(resources.jars, "CHECKSUMS", tmp_path / "checksums.txt")
    lines = [f"{hashlib.sha256(content).hexdigest()}  small/{name}" for name, content in GIVEN.items()]
    (tmp_path / "checksums.txt").write_text("\n".join(lines))

    def hold(content: dict[str, bytes]) -> list[str]:
        fetched = []

        def resolve(group: str, scratch: Path) -> list[Path]:
            fetched.append(group)
            folder = scratch / "jars"
            folder.mkdir()
            for name, data in content.items():
                (folder / name).write_bytes(data)
            return sorted(folder.iterdir())

        monkeypatch.setattr(resources.jars, "_resolve", resolve)
        return fetched

    return hold


def test_every_manifest_is_pinned_and_present() -> None:
    for group in groups():
        assert {path.name for path in jars(group)} == set(checksums(group))
        assert all(path.exists() for path in jars(group))


def test_the_engine_adds_eleven_jars_to_those_of_pyspark() -> None:
    assert len(jars("engine")) == 11


def test_present_jars_need_neither_java_nor_the_network(monkeypatch: pytest.MonkeyPatch) -> None:
    jars("engine")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", "")
    assert all(path.exists() for path in jars("engine"))


def test_jars_are_fetched_once_by_callers_at_the_same_time(
    repository: Callable[[dict[str, bytes]], list[str]],
) -> None:
    fetched = repository(GIVEN)
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(jars, ["small"] * 8))
    assert fetched == ["small"]
    assert {path.read_bytes() for paths in found for path in paths} == {b"a", b"b"}


def test_a_missing_jar_is_fetched_again(repository: Callable[[dict[str, bytes]], list[str]]) -> None:
    fetched = repository(GIVEN)
    jars("small")[0].unlink()
    assert all(path.exists() for path in jars("small"))
    assert fetched == ["small", "small"]


def test_a_jar_that_is_not_the_pinned_one_is_refused_and_not_kept(
    repository: Callable[[dict[str, bytes]], list[str]], tmp_path: Path
) -> None:
    repository({**GIVEN, "b-2.jar": b"something else"})
    with pytest.raises(JarsUnavailable, match=r"b-2\.jar is not the pinned jar"):
        jars("small")
    assert not list((tmp_path / "cache").rglob("*.jar"))
    repository(GIVEN)
    assert [path.read_bytes() for path in jars("small")] == [b"a", b"b"]


def test_a_jar_that_nobody_pinned_is_not_kept(
    repository: Callable[[dict[str, bytes]], list[str]], tmp_path: Path
) -> None:
    repository({**GIVEN, "c-3.jar": b"c"})
    jars("small")
    assert {path.name for path in (tmp_path / "cache").rglob("*.jar")} == set(GIVEN)


def test_a_manifest_that_lost_a_jar_is_named(repository: Callable[[dict[str, bytes]], list[str]]) -> None:
    repository({"a-1.jar": b"a"})
    with pytest.raises(JarsUnavailable, match=r"b-2\.jar"):
        jars("small")


def test_a_group_that_nobody_pinned_is_an_error_that_says_how() -> None:
    with pytest.raises(JarsUnavailable, match="--pin nothing"):
        jars("nothing")
