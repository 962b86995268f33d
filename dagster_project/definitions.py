"""The code location that Dagster loads: the topologies of the settings."""

from __future__ import annotations

import dagster as dg

from assets.threads import threads
from dagster_project.build import definitions as definitions
from dagster_project.build import definitions_of
from dagster_project.settings import Settings


def loaded() -> dg.Definitions:
    """The definitions of all valid topologies, and the errors of the others."""
    settings = Settings.from_environment()
    # Also for assets that are launched from the UI without a job.
    return definitions_of(settings, executor=threads(settings.tidetable().engine.width))


defs = loaded()
