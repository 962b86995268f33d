"""Topologies live where their owner wants: folders, modules and packages, with their expectations beside them."""

from __future__ import annotations

import os
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from assets.suites import BrokenSuite
from dagster_project.discover import BrokenTopology, suites_of, topologies
from dagster_project.settings import SHIPPED, Settings, SettingsError

SUITE = '{"name": "s", "expectations": [{"type": "expect_table_row_count_to_be_between", "kwargs": {"min_value": 0}}]}'


@pytest.fixture(autouse=True)
def _imports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What a test imports from its folder is forgotten after it."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        if str(tmp_path) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


def written(path: Path, name: str, before: str = "") -> None:
    """A topology's file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    text = f"""
        from tidetable import Consumed, StreamsBuilder
        {before}
        builder = StreamsBuilder("{name}")
        builder.table("t", Consumed.json(key="id bigint", value="v int"))
        topology = builder.build()
    """
    path.write_text(textwrap.dedent(text))


def placed(*places: Path | str, expectations: Path | None = None) -> Settings:
    named = tuple(str(place) for place in places)
    return Settings(topologies=named, expectations=None if expectations is None else str(expectations))


def names(settings: Settings) -> list[str]:
    return [topology.name for topology in topologies(settings=settings)]


def test_several_folders_of_one_name_hold_topologies(tmp_path: Path) -> None:
    written(tmp_path / "a" / "topologies" / "one.py", "one")
    written(tmp_path / "b" / "topologies" / "one.py", "two")
    assert names(placed(tmp_path / "a" / "topologies", tmp_path / "b" / "topologies")) == ["one", "two"]
    assert names(placed(tmp_path / "a" / "topologies", tmp_path / "a" / "topologies")) == ["one"]


def test_a_module_has_one_topology_and_a_package_one_for_each_module(tmp_path: Path) -> None:
    (tmp_path / "tidetable.toml").write_text('topologies = ["acme.tables", "acme.single"]')
    (tmp_path / "acme").mkdir()
    (tmp_path / "acme" / "__init__.py").touch()
    written(tmp_path / "acme" / "single.py", "single")
    for name in ("one", "two"):
        written(tmp_path / "acme" / "tables" / f"{name}.py", name)
    settings = Settings.from_environment({}, tmp_path)
    assert names(settings) == ["one", "single", "two"], "beside the settings file, without being installed"


def test_a_topology_may_import_what_is_beside_it_and_beside_its_folder(tmp_path: Path) -> None:
    (tmp_path / "words_of_the_project.py").touch()
    written(tmp_path / "tables" / "one.py", "one", before="import words_of_the_project; from . import two")
    written(tmp_path / "tables" / "two.py", "two")
    assert names(placed(tmp_path / "tables")) == ["one", "two"]


def test_what_is_not_there_is_said_by_its_name_and_by_where_it_was_written(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=rf"TIDETABLE_TOPOLOGIES={tmp_path}/none: there is no such folder"):
        names(placed(tmp_path / "none"))
    with pytest.raises(
        SettingsError, match=r"TIDETABLE_TOPOLOGIES=nowhere: there is no such folder, and no such module"
    ):
        names(placed("nowhere"))
    with pytest.raises(SettingsError, match=r"nowhere.at_all: there is no such folder"):
        names(placed("nowhere.at_all"))
    (tmp_path / "tidetable.toml").touch()
    with pytest.raises(SettingsError, match=rf"tidetable.toml: topologies={tmp_path}/topologies: there is no such fol"):
        names(Settings.from_environment({}, tmp_path))
    written(tmp_path / "topologies" / "one.py", "one")
    settings = placed(tmp_path / "topologies", expectations=tmp_path / "none")
    with pytest.raises(SettingsError, match=rf"TIDETABLE_EXPECTATIONS={tmp_path}/none: there is no such folder"):
        suites_of(topologies(settings=settings)[0], [], [], settings)


def test_a_package_that_cannot_be_imported_is_left_out_alone(tmp_path: Path) -> None:
    (tmp_path / "tidetable.toml").write_text('topologies = ["torn.tables", "tables"]')
    (tmp_path / "torn").mkdir()
    (tmp_path / "torn" / "__init__.py").write_text("import nothing_of_this_name")
    written(tmp_path / "tables" / "one.py", "one")
    settings = Settings.from_environment({}, tmp_path)
    broken: list[BrokenTopology] = []
    found = topologies(broken.append, settings)
    assert [topology.name for topology in found] == ["one"]
    assert "nothing_of_this_name" in str(broken[0])
    assert suites_of(found[0], found, broken, settings) == {}


def test_one_name_in_two_folders_is_refused(tmp_path: Path) -> None:
    written(tmp_path / "a" / "one.py", "one")
    written(tmp_path / "b" / "other.py", "ONE")
    with pytest.raises(
        BrokenTopology, match=r"a/one.py defines topology 'one', and .*b/other.py defines 'ONE': rename"
    ):
        names(placed(tmp_path / "a", tmp_path / "b"))


def test_expectations_are_beside_each_folder_of_topologies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("assets.suites._check_expectations", lambda _: None)  # seconds: Great Expectations' import
    for name in ("a", "b"):
        written(tmp_path / name / "topologies" / f"{name}.py", name)
    (tmp_path / "b" / "expectations").mkdir()
    (tmp_path / "b" / "expectations" / "b.t.json").write_text(SUITE)
    settings = placed(tmp_path / "a" / "topologies", tmp_path / "b" / "topologies")
    a, b = topologies(settings=settings)
    assert suites_of(a, [a, b], [], settings) == {}
    assert list(suites_of(b, [a, b], [], settings)) == ["b.t"]
    (tmp_path / "a" / "expectations").mkdir()
    (tmp_path / "a" / "expectations" / "b.t.json").write_text(SUITE)
    with pytest.raises(BrokenSuite, match=r"are both suites of b.t: keep one of the two"):
        suites_of(b, [a, b], [], settings)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "a.t.json").write_text(SUITE)
    assert list(suites_of(a, [a, b], [], placed(*settings.places, expectations=elsewhere))) == ["a.t"]


def test_without_settings_this_checkout_has_its_own_and_a_wheel_has_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert names(Settings.from_environment({})) == ["shop"]
    monkeypatch.setattr("dagster_project.settings.SHIPPED", "dagster_project.nothing_of_this_name")
    with pytest.raises(SettingsError, match=r"there are no topologies: .*TIDETABLE_TOPOLOGIES.*tidetable init DIR"):
        names(Settings.from_environment({}))


def test_a_variable_names_several_places_by_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written(tmp_path / "here" / "a" / "one.py", "one")
    (tmp_path / "tidetable.toml").touch()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setenv("TIDETABLE_TOPOLOGIES", os.pathsep.join(["a", SHIPPED]))
    assert [topology.name for topology in topologies()] == ["one", "shop"]
