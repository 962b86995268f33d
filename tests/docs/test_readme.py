"""The README's first topology, exactly as it is printed, from the file to the rows."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from dagster_project import topologies as package
from dagster_project.cli import main

README = Path(__file__).parents[2] / "README.md"
DECLARE, PRODUCE, READ, TRY = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
COMMANDS = re.findall(r"^\$ \.venv/bin/tidetable ([^#\n]*)", README.read_text(), re.MULTILINE)


def test_the_first_topology_of_the_readme_runs(
    own_lake: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "first.py").write_text(DECLARE)
    monkeypatch.setattr(package, "__path__", [*package.__path__, str(tmp_path)])

    assert [command.split()[0] for command in COMMANDS] == ["up", "topics", "run", "status", "audit"]
    for command in COMMANDS:
        if command.startswith("run"):
            exec(compile(PRODUCE, str(README), "exec"), {})
        result = CliRunner().invoke(main, command.split(), catch_exceptions=False)
        assert result.exit_code == 0, result.output

    exec(compile(READ.replace(".lake/", f"{own_lake}/"), str(README), "exec"), {})
    printed = capsys.readouterr().out
    assert "'order_id': 1" in printed
    assert "'name': 'Ada'" in printed

    exec(compile(TRY, str(README), "exec"), {})  # its session stays: it may be one that other tests have opened
