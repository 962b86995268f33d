"""The two consoles of the command: results on standard output, progress and errors on standard error."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

import click
from rich.console import Console
from rich.table import Table as Grid

if TYPE_CHECKING:
    from dagster_project.render import Json

# In a pipe, a row is one line of any width, without rules.
out = Console(soft_wrap=True, highlight=False, width=None if sys.stdout.isatty() else 100_000)
progress = Console(stderr=True)


def print_result(as_json: bool, data: Json, *lines: str | Grid) -> None:
    """Print the result: `data` as JSON on one line, or `lines` as text."""
    if as_json:
        click.echo(json.dumps(data))
        return
    for line in lines:
        if isinstance(line, Grid) and not out.is_terminal:
            line.box = None
        out.print(line)
