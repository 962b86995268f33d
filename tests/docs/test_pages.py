"""The tutorial and the how-to pages: their code runs, their suites are suites, their commands are commands."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import click
import pytest

from assets.suites import suites
from dagster_project.cli import main
from tests.docs.pages import DOCS, PAGES, blocks

ROOT = DOCS.parent
COMMAND = re.compile(r"^ *\$ \.venv/bin/tidetable ([^#\n]*)", re.MULTILINE)
TEXTS = [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]


def test_the_code_of_the_pages_runs() -> None:
    # In a process of its own: one that has spoken to an engine gives no session of Spark's own any more.
    connect = ("SPARK_REMOTE", "SPARK_CONNECT_MODE_ENABLED")
    ran = subprocess.run(
        [sys.executable, "-m", "tests.docs.pages"],
        cwd=ROOT,
        env={name: value for name, value in os.environ.items() if name not in connect},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.count("ran ") == len(PAGES)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_no_block_of_a_page_is_overlooked(page: Path) -> None:
    assert page.read_text().count("```python") == len(list(blocks(page)))


def test_the_suite_of_the_tutorial_is_one_of_its_table(tmp_path: Path) -> None:
    page = DOCS / "tutorial.md"
    declared: dict[str, object] = {}
    exec(next(blocks(page)).code, declared)
    suite = re.findall(r"```json\n(.*?)```", page.read_text(), re.DOTALL)
    (tmp_path / "sales.orders_enriched.json").write_text(suite[0])
    assert list(suites([declared["topology"]], tmp_path)) == ["sales.orders_enriched"]  # type: ignore[list-item]


@pytest.mark.parametrize("line", sorted({line.strip() for text in TEXTS for line in COMMAND.findall(text.read_text())}))
def test_a_command_of_the_pages_is_one(line: str) -> None:
    command: click.Command = main
    context = click.Context(main)
    args = shlex.split(line)
    while isinstance(command, click.Group):
        found = command.get_command(context, args.pop(0))
        assert found is not None, f"there is no such verb: {line}"
        command = found
    command.make_context(line, args)


def test_the_readme_fits_two_screens_and_leads_to_every_part_of_the_site() -> None:
    text = (ROOT / "README.md").read_text()
    assert len(text.splitlines()) <= 120
    for target in re.findall(r"\]\(([^)#]+)\)", text):
        assert (ROOT / target).exists(), f"{target} is not there"
    for part in ("tutorial.md", "how-to/", "reference/", "explanation/", "decisions/"):
        assert f"docs/{part}" in text
