"""The code location that Dagster loads: the topologies of the settings."""

from __future__ import annotations

import dagster as dg

from dagster_project.build import definitions as definitions
from dagster_project.build import definitions_of
from dagster_project.settings import Settings


def loaded() -> dg.Definitions:
    """The definitions of all valid topologies, and the errors of the others."""
    # One process also for assets that are launched from the UI without a job.
    return definitions_of(Settings.from_environment(), executor=dg.in_process_executor)


defs = loaded()
