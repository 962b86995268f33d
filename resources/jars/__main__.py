"""Finds Java, and fetches every group of jars."""

from __future__ import annotations

import click

from resources.jars import JarsUnavailable, checksums, groups, jars, pin
from resources.java import JavaNotFound, java


@click.command()
@click.option("--pin", "group", metavar="GROUP", help="Resolve GROUP's manifest again, and write its checksums.")
def main(group: str | None) -> None:
    """Find Java, fetch all missing jars, and print where they are."""
    try:
        click.echo(f"java: {java()}")
        if group is not None:
            click.echo(f"{group}: {len(pin(group))} jars pinned")
        else:
            for each in groups():
                _fetch(each)
    except (JarsUnavailable, JavaNotFound) as error:
        raise click.ClickException(str(error)) from error


def _fetch(group: str) -> None:
    click.echo(f"{group}: {len(checksums(group))} jars; missing ones are fetched now, which takes a minute once")
    paths = jars(group)
    size = sum(path.stat().st_size for path in paths) / 1e6
    click.echo(f"{group}: {size:.0f} MB in {paths[0].parent}")


main()
