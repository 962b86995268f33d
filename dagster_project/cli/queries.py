"""Commands that read rows of tables: get, range, prefix, scan and history. They start no server."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from dagster_project import render
from dagster_project.cli.arguments import POSITIVE, VERSION, Seconds, json_option, table_argument
from dagster_project.cli.output import print_result
from dagster_project.settings import Settings
from spark.query.keys import time_of
from spark.query.positions import offsets_from
from spark.query.reader import Reader
from spark.query.table_reader import TIMEOUT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from rich.table import Table as Grid

    from spark.query.table_reader import TableReader

KEYS = {"ignore_unknown_options": True}  # a negative number is a key, not an option


def _version_options(command: Callable[..., None]) -> Callable[..., None]:
    for option in (
        click.option("--as-of-version", type=VERSION, help="Read this version of the table."),
        click.option(
            "--as-of-timestamp",
            metavar="TIME",
            help="Read the newest version committed up to a time, such as 2026-11-24T10:00; UTC without an offset.",
        ),
        click.option(
            "--at-least",
            metavar="TOPIC:PARTITION:OFFSET",
            multiple=True,
            help="Wait until the table has this record of its topic; may be repeated.",
        ),
        click.option(
            "--timeout",
            type=Seconds(min=0),
            default=TIMEOUT,
            show_default=True,
            help="How many seconds --at-least waits.",
        ),
        click.option("--column", "columns", multiple=True, help="A column to print; all by default; may be repeated."),
        click.option("--metadata", is_flag=True, help="Also print _timestamp, _topic, _partition and _offset."),
        json_option,
    ):
        command = option(command)
    return command


_limit = click.option("--limit", type=POSITIVE, help="Maximum number of rows.")
_reverse = click.option("--reverse", is_flag=True, help="Greatest keys first.")


@click.command(context_settings=KEYS)
@table_argument
@click.argument("key", nargs=-1, required=True)
@_version_options
def get(name: str, key: tuple[str, ...], as_json: bool, **options: Any) -> None:
    """Print the row of a key. KEY has a value for each key column. Starts no server."""
    table, shown = _table(name, **options)
    row = table.get(table.parsed(key), **shown)
    lines = ["no row"] if row is None else [render.rows_grid([row])]
    print_result(as_json, render.to_json(row), *lines)


@click.command(name="range")
@table_argument
@click.option("--from", "low", multiple=True, help="The least key; may be repeated, once for each key column.")
@click.option("--to", "high", multiple=True, help="The greatest key, which is included; as --from.")
@_limit
@_reverse
@_version_options
def key_range(
    name: str,
    low: tuple[str, ...],
    high: tuple[str, ...],
    limit: int | None,
    reverse: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Print the rows from one key to another, in the order of the key. Starts no server."""
    table, shown = _table(name, **options)
    bounds = [table.parsed(bound) if bound else None for bound in (low, high)]
    _print(table.range(*bounds, limit=limit, reverse=reverse, **shown), as_json)


@click.command(context_settings=KEYS)
@table_argument
@click.argument("start", nargs=-1, required=True)
@_limit
@_reverse
@_version_options
def prefix(name: str, start: tuple[str, ...], limit: int | None, reverse: bool, as_json: bool, **options: Any) -> None:
    """Print the rows whose key begins with START. Starts no server.

    START is the beginning of a key of text, or values of the first key columns.
    """
    table, shown = _table(name, **options)
    values = table.parsed(start)
    _print(table.prefix(values[0] if len(values) == 1 else values, limit=limit, reverse=reverse, **shown), as_json)


@click.command()
@table_argument
@_limit
@_reverse
@_version_options
def scan(name: str, limit: int | None, reverse: bool, as_json: bool, **options: Any) -> None:
    """Print all rows, in the order of the key. Starts no server."""
    table, shown = _table(name, **options)
    _print(table.all(limit=limit, reverse=reverse, **shown), as_json)


@click.command(context_settings=KEYS)
@table_argument
@click.argument("key", nargs=-1, required=True)
@_version_options
def history(name: str, key: tuple[str, ...], as_json: bool, **options: Any) -> None:
    """Print what each commit made of the row of a key, oldest first. Starts no server.

    It reaches back as far as the table has its log and its files.
    """
    table, shown = _table(name, **options)
    found = table.history(table.parsed(key), **shown)
    lines: list[str | Grid] = [render.history_grid(found)] if len(found) else ["no commit changed a row of this key"]
    if found.since > 0:
        lines.append(f"versions before {found.since} are not known any more: their files or their log were removed")
    print_result(as_json, render.to_json(found), *lines)


def _table(
    name: str,
    as_of_version: int | None,
    as_of_timestamp: str | None,
    at_least: tuple[str, ...],
    timeout: float,
    columns: tuple[str, ...],
    metadata: bool,
) -> tuple[TableReader, dict[str, Any]]:
    """The reader of a table at the version that the options name, and the options of a query of it."""
    reader = Reader(Settings.from_environment().tidetable().lakehouse)
    table = reader.table(name, offsets_from(at_least), timeout)
    if as_of_version is not None and as_of_timestamp is not None:
        raise click.UsageError("--as-of-version and --as-of-timestamp name two versions: leave one out")
    if as_of_version is not None:
        table = table.as_of_version(as_of_version)
    if as_of_timestamp is not None:
        table = table.as_of_timestamp(time_of(as_of_timestamp))
    return table, {"columns": columns or None, "metadata": metadata}


def _print(rows: Iterable[Mapping[str, Any]], as_json: bool) -> None:
    found = list(rows)
    lines = [render.rows_grid(found)] if found else ["no rows"]
    print_result(as_json, render.to_json(found), *lines)
