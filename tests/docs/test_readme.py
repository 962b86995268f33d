"""The README's first topology, exactly as it is printed, from the file to the rows."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

from dagster_project import topologies as package
from dagster_project.cli import main

if TYPE_CHECKING:
    from resources.engine import Engine
    from resources.kafka import Kafka

README = Path(__file__).parents[2] / "README.md"
DECLARE, PRODUCE, READ = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
COMMANDS = re.findall(r"^\$ \.venv/bin/tidetable ([^#\n]*)", README.read_text(), re.MULTILINE)


def test_the_first_topology_of_the_readme_runs(
    engine: Engine,
    kafka: Kafka,
    lake_root: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    engine.start()
    monkeypatch.setenv("TIDETABLE_LAKE", str(lake_root))
    monkeypatch.setenv("TIDETABLE_KAFKA", kafka.address)
    (tmp_path / "first.py").write_text(DECLARE)
    monkeypatch.setattr(package, "__path__", [*package.__path__, str(tmp_path)])

    exec(compile(PRODUCE, str(README), "exec"), {})
    for command in COMMANDS:
        result = CliRunner().invoke(main, command.split(), catch_exceptions=False)
        assert result.exit_code == 0, result.output
    assert [command.split()[0] for command in COMMANDS] == ["run", "status", "audit"]

    exec(compile(READ.replace(".lake/", f"{lake_root}/"), str(README), "exec"), {})
    printed = capsys.readouterr().out
    assert "'order_id': 1" in printed
    assert "'name': 'Ada'" in printed
