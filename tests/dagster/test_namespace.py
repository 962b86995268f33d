"""`import tidetable`: light, and an error by name where another package has the name of one of ours."""

from __future__ import annotations

import base64
import hashlib
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import tidetable
from dagster_project.build import build_definitions
from dagster_project.settings import Settings
from spark.testing import TopologyTestDriver
from tidetable.rooms import ROOMS

ROOT = Path(__file__).parents[2]


def python(script: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """A fresh interpreter with a working directory on its path, as `python -c` has it."""
    return subprocess.run([sys.executable, "-c", script], cwd=folder, capture_output=True, text=True, check=False)


def test_everything_that_is_promised_is_there() -> None:
    assert all(getattr(tidetable, name) for name in tidetable.__all__)
    assert tidetable.build_definitions is build_definitions
    assert tidetable.Settings is Settings
    assert tidetable.testing.TopologyTestDriver is TopologyTestDriver
    with pytest.raises(AttributeError, match="has no attribute 'StreamBuilder'"):
        _ = tidetable.StreamBuilder  # type: ignore[attr-defined]  # what is tested


def test_every_package_of_the_wheel_is_marked_as_typed() -> None:
    built = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    assert {*built["packages"]} == {"tidetable", *ROOMS}
    for package in built["packages"]:
        assert (ROOT / package / "py.typed").is_file(), package
        assert f"{package}/py.typed" not in built["exclude"]


@pytest.mark.thorough
def test_a_users_type_checker_knows_the_types(tmp_path: Path) -> None:
    (tmp_path / "first.py").write_text(
        "import tidetable\n"
        "builder = tidetable.StreamsBuilder('first')\n"
        "items = builder.table('items', tidetable.Consumed.json(key='id bigint', value='v int'))\n"
        "reveal_type(items)\n"
        "reveal_type(tidetable.build_definitions)\n"
    )
    command = [sys.executable, "-m", "mypy", "--strict", "first.py"]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout
    assert 'Revealed type is "spark.topology.handles.handles.KTable"' in ran.stdout
    assert "Definitions" in ran.stdout, "of Dagster"


def test_importing_needs_neither_dagster_nor_spark(tmp_path: Path) -> None:
    script = (
        "import sys, tidetable;"
        "topology = tidetable.StreamsBuilder('t');"
        "heavy = {'dagster', 'pyspark', 'confluent_kafka', 'pydantic', 'pandas', 'click'} & set(sys.modules);"
        "assert not heavy, heavy"
    )
    assert python(script, tmp_path).stderr == ""


@pytest.mark.parametrize("room", ROOMS)
@pytest.mark.parametrize("form", ["{room}/__init__.py", "{room}.py"])
def test_a_package_of_the_working_directory_with_our_name_is_named(tmp_path: Path, room: str, form: str) -> None:
    other = tmp_path / form.format(room=room)
    other.parent.mkdir(exist_ok=True)
    other.touch()
    ran = python("import tidetable", tmp_path)
    assert f"tidetable.rooms.NameTaken: {other} is another package '{room}'" in ran.stderr
    assert "Run Tidetable as a code location of its own" in ran.stderr


def test_what_was_imported_before_or_comes_later_on_the_path_is_named_too(tmp_path: Path) -> None:
    other = tmp_path / "elsewhere" / "assets" / "__init__.py"
    other.parent.mkdir(parents=True)
    other.touch()
    before = "import sys; sys.path.insert(0, 'elsewhere'); import assets; del sys.path[0]; import tidetable"
    assert f"NameTaken: {other} is" in python(before, tmp_path).stderr
    later = "import sys; sys.path.append('elsewhere'); import tidetable"
    assert f"NameTaken: {other} is" in python(later, tmp_path).stderr


def test_a_folder_that_is_no_package_is_in_nobodys_way(tmp_path: Path) -> None:
    (tmp_path / "assets").mkdir()
    (tmp_path / "assets" / "logo.svg").touch()
    assert python("import tidetable", tmp_path).stderr == ""


def test_a_distribution_installed_over_ours_is_named(tmp_path: Path) -> None:
    site = tmp_path / "site"
    for name in ("tidetable", *ROOMS):
        shutil.copytree(ROOT / name, site / name)
    lines = []
    for room in ROOMS:
        digest = hashlib.sha256((site / room / "__init__.py").read_bytes()).digest()
        lines.append(f"{room}/__init__.py,sha256={base64.urlsafe_b64encode(digest).decode().rstrip('=')},1")
    (site / "tidetable-0.1.0.dist-info").mkdir()
    (site / "tidetable-0.1.0.dist-info" / "RECORD").write_text("\n".join(lines))
    # -S: without the checkout on the path.
    command = [sys.executable, "-S", "-c", "import tidetable"]
    first = subprocess.run(command, cwd=site, capture_output=True, text=True, check=False)
    assert first.stderr == ""
    (site / "assets" / "__init__.py").write_text("OTHER = True")
    second = subprocess.run(command, cwd=site, capture_output=True, text=True, check=False)
    assert f"NameTaken: {site}/assets/__init__.py is another package 'assets'" in second.stderr
