"""What Dagster loads: the topologies of the settings, in a code location of their own."""

from __future__ import annotations

import dagster as dg

from dagster_project.build import built
from dagster_project.build import definitions as definitions
from dagster_project.settings import Settings


def loaded() -> dg.Definitions:
    """What the code location holds: every topology that can be meant, and what is wrong with the others."""
    # In one process, also what is launched from the UI without a job.
    return built(Settings.from_environment(), executor=dg.in_process_executor)


defs = loaded()
