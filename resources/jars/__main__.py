"""Finds Java, and fetches every group of jars."""

from __future__ import annotations

import click

from resources.jars import JarsUnavailable, checksums, groups, jars, pin
from resources.java import JavaNotFound, java


@click.command()
@click.option("--pin", "anew", metavar="GROUP", help="Resolve GROUP's manifest anew and write its checksums.")
def main(anew: str | None) -> None:
    """Look for Java, fetch all jars that are not there yet, and say where they are."""
    try:
        click.echo(f"java: {java()}")
        if anew is not None:
            click.echo(f"{anew}: {len(pin(anew))} jars pinned")
        else:
            for group in groups():
                _fetch(group)
    except (JarsUnavailable, JavaNotFound) as error:
        raise click.ClickException(str(error)) from error


def _fetch(group: str) -> None:
    click.echo(f"{group}: {len(checksums(group))} jars; any that is missing is fetched now, a minute once")
    paths = jars(group)
    size = sum(path.stat().st_size for path in paths) / 1e6
    click.echo(f"{group}: {size:.0f} MB in {paths[0].parent}")


main()
