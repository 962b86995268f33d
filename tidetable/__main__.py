"""The command `tidetable`."""

from __future__ import annotations

from dagster_project.cli import main

if __name__ == "__main__":
    main(prog_name="tidetable")
